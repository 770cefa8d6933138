"""
The page of `distir explore`, which a browser on the same machine shows.

- `state`: the settings of the page, which are a URL and a command line;
- `form`: the settings as fields of the page;
- `models`: the programs that the page knows;
- `answers`: simulates a state;
- `plans`: the plans that were looked at, and the search for others;
- `jobs`: runs one piece of work after another, and gives up what nobody waits for;
- `server`: the requests of the browser;
- `page`: the files that it shows.
"""
