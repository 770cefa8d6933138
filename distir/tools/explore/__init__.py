"""
The page of `distir explore`, which a browser on the same machine shows.

- `state`: the settings of the page, as a URL and as a command line;
- `form`: the settings as fields of the page;
- `models`: the programs that the page can show;
- `answers`: simulates the settings;
- `plans`: the plans simulated so far, and the search for more;
- `jobs`: runs one piece of work after another, and cancels unneeded work;
- `server`: answers the requests of the browser;
- `page`: the files that the browser shows.
"""
