"""The portal: the state of an experiment, live in a browser, and the same as JSON.

    with Workspace.open() as workspace:
        serve(workspace, PortalOptions(port=0), lambda address: print(address.url))

`serve` is in `server.py`; `create_app` of `app.py` returns the application, for a server of your
own. Needs the extra `portal`. Start reading in `app.py`, then `feed.py` and `views/`.
"""
