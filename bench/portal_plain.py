"""python -m bench.portal_plain PROJECT: the table as a page that reads the store for each request.

What it draws is the portal's own page; only where the rows come from differs.
"""

from __future__ import annotations

import sys
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.requests import Request
from fastapi.responses import HTMLResponse

from edgeloop.settings import Settings
from edgeloop.view.portal.app import create_app
from edgeloop.view.portal.feed import Feed, read_row
from edgeloop.view.portal.server import bound
from edgeloop.view.portal.state import Portal, PortalOptions
from edgeloop.workspace import Workspace


class Scanning(Portal):
    """Forgets all rows between two requests."""

    def rows(self, experiment: str | None = None):
        workspace = self.workspace
        feed = Feed(
            workspace.store.models(workspace.experiment),
            lambda record: read_row(record, workspace.plan, 15.0, 3),
        )
        feed.refresh()
        return feed.snapshot


def main() -> None:
    project = Path(sys.argv[1])
    workspace = Workspace(Settings.load(project, {}))
    from edgeloop.view.portal import pages
    from edgeloop.view.portal.pages import Templates, table_values
    from edgeloop.view.portal.views.table import table_view

    portal = Scanning(workspace)
    host = create_app(workspace)  # its templates need an application around them
    host.state.portal = portal
    app = FastAPI()
    app.state.portal = portal
    templates = Templates()

    @app.get("/")
    def table(request: Request) -> HTMLResponse:
        view = table_view(portal, None, pages.table_query(request.query_params))
        shown = "".join(str(row) for _, row in templates.rows(request, view))
        return templates.page(request, "table", tab="/", rows=shown, **table_values(view))

    with bound(PortalOptions(port=0)) as listener:
        print(f"http://127.0.0.1:{listener.getsockname()[1]}/", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listener])


if __name__ == "__main__":
    main()
