"""Scripts for families of models; each is a file that `distir schedule` takes."""
