"""The viewer of trajectories: what `hermes-queue view` and `hermes-queue show` are made of.

    actions/     what may be done from the pages
    answers.py   values as JSON, and refusals
    app.py       the table of routes, and how one is answered
    assets.py    files of the page
    compare/     the samples of a group side by side
    filed/       trajectories in one HTML file
    findings.py  findings of judges, in files
    guard.py     who may ask: Host, Origin, headers of every answer
    index/       the SQLite cache: pages, filters, histograms, groups
    live.py      tells those who look what changes in the deployment
    lookup/      one trajectory or group by its id, without an index
    present/     from a raw record to what is shown of it
    records/     one record without validation, and its row in lists
    routes/      what the API answers
    serving.py   the socket, and the server behind it
    site.py      all that the routes need
    sources/     where records are: the stream, an archive, files
    terminal/    trajectories and groups in a terminal
    tokens.py    tokens, roles and sessions
    transcripts.py  what runs, asked of its worker

Records are hostile: a model and the programs that it ran have written them. Nothing here validates
them, and no shape of a record may raise an error where it is listed or shown.
"""
