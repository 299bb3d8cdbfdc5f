-- Every statement that a SQL store runs. A query starts at its line `-- name: NAME`; parameters are
-- written `:name`. Where the dialects differ, there is one query per dialect: NAME.sqlite and
-- NAME.postgresql.
--
-- All tables of a store are one SQL table of JSON documents, and `space` tells them apart:
-- models/EXPERIMENT, queue/EXPERIMENT, usage. Stores of older versions have this very table, so its
-- columns may not change.

-- name: create_table.sqlite
CREATE TABLE IF NOT EXISTS edgeloop_rows (
    space TEXT NOT NULL,
    key TEXT NOT NULL,
    version TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (space, key)
);

-- name: create_table.postgresql
-- Keys sort by their bytes, as they do in SQLite, and not in the order of the server's locale.
CREATE TABLE IF NOT EXISTS edgeloop_rows (
    space TEXT COLLATE "C" NOT NULL,
    key TEXT COLLATE "C" NOT NULL,
    version TEXT NOT NULL,
    data TEXT NOT NULL,
    PRIMARY KEY (space, key)
);

-- name: index_priorities.sqlite
-- Unfinished rows with a priority of their own, so that every claim may ask for them.
-- `prioritized` has the same expressions; an index of another name is needed if they change.
CREATE INDEX IF NOT EXISTS edgeloop_priorities ON edgeloop_rows (
    space,
    CASE WHEN typeof(json_extract(data, '$.priority')) IN ('integer', 'real')
            OR trim(json_extract(data, '$.priority')) GLOB '[-+.0-9]*'
        THEN CAST(json_extract(data, '$.priority') AS REAL) END
)
WHERE json_extract(data, '$.priority') IS NOT NULL
    AND json_extract(data, '$.status') NOT IN ('complete', 'error');

-- name: index_priorities.postgresql
CREATE INDEX IF NOT EXISTS edgeloop_priorities ON edgeloop_rows (
    space,
    (CASE WHEN CAST(data AS json) ->> 'priority' ~ '^ *[-+]?[0-9]{1,15}([.][0-9]*)?([eE][-+]?[0-9]{1,2})? *$'
        THEN CAST(CAST(data AS json) ->> 'priority' AS double precision) END)
)
WHERE CAST(data AS json) ->> 'priority' IS NOT NULL
    AND CAST(data AS json) ->> 'status' NOT IN ('complete', 'error');

-- name: has_priorities_index.sqlite
SELECT 1 FROM sqlite_master WHERE type = 'index' AND name = 'edgeloop_priorities';

-- name: has_priorities_index.postgresql
SELECT 1 WHERE to_regclass('edgeloop_priorities') IS NOT NULL;

-- name: prioritized.sqlite
SELECT key, version, data FROM edgeloop_rows
WHERE space = :space
    AND CASE WHEN typeof(json_extract(data, '$.priority')) IN ('integer', 'real')
            OR trim(json_extract(data, '$.priority')) GLOB '[-+.0-9]*'
        THEN CAST(json_extract(data, '$.priority') AS REAL) END < :below
    AND json_extract(data, '$.priority') IS NOT NULL
    AND json_extract(data, '$.status') NOT IN ('complete', 'error');

-- name: prioritized.postgresql
SELECT key, version, data FROM edgeloop_rows
WHERE space = :space
    AND (CASE WHEN CAST(data AS json) ->> 'priority' ~ '^ *[-+]?[0-9]{1,15}([.][0-9]*)?([eE][-+]?[0-9]{1,2})? *$'
        THEN CAST(CAST(data AS json) ->> 'priority' AS double precision) END) < :below
    AND CAST(data AS json) ->> 'priority' IS NOT NULL
    AND CAST(data AS json) ->> 'status' NOT IN ('complete', 'error');

-- name: get
SELECT key, version, data FROM edgeloop_rows WHERE space = :space AND key = :key;

-- name: insert
INSERT INTO edgeloop_rows (space, key, version, data) VALUES (:space, :key, :version, :data);

-- name: insert_missing.sqlite
-- Rows whose keys are taken are left as they are.
INSERT INTO edgeloop_rows (space, key, version, data) VALUES (:space, :key, :version, :data)
ON CONFLICT DO NOTHING;

-- name: insert_missing.postgresql
INSERT INTO edgeloop_rows (space, key, version, data)
SELECT CAST(:space AS text), fresh.key, fresh.version, fresh.data
FROM unnest(:keys::text[], :versions::text[], :documents::text[]) AS fresh (key, version, data)
ON CONFLICT DO NOTHING;

-- name: update
-- Compare-and-set: changes the row only if it still has the version that was read.
UPDATE edgeloop_rows SET version = :new_version, data = :new_data
WHERE space = :space AND key = :key AND version = :version;

-- name: delete
DELETE FROM edgeloop_rows WHERE space = :space AND key = :key AND version = :version;

-- name: put
-- Overwrites a row, whatever it holds.
INSERT INTO edgeloop_rows (space, key, version, data) VALUES (:space, :key, :version, :data)
ON CONFLICT (space, key) DO UPDATE SET version = excluded.version, data = excluded.data;

-- name: remove.sqlite
DELETE FROM edgeloop_rows WHERE space = :space AND key = :key;

-- name: update_and_put.postgresql
-- `update` and `put` as one statement: one round trip, one transaction, and nothing is written to
-- the other space unless the row still has its version.
WITH changed AS (
    UPDATE edgeloop_rows SET version = :new_version, data = :new_data
    WHERE space = :space AND key = :key AND version = :version
    RETURNING key
), put AS (
    INSERT INTO edgeloop_rows (space, key, version, data)
    SELECT CAST(:other_space AS text), fresh.key, fresh.version, fresh.data
    FROM changed,
        unnest(:keys::text[], :versions::text[], :documents::text[]) AS fresh (key, version, data)
    ON CONFLICT (space, key) DO UPDATE SET version = excluded.version, data = excluded.data
)
SELECT key FROM changed;

-- name: update_and_remove.postgresql
-- The same with `remove`. Both in one statement would cost every claim and commit both.
WITH changed AS (
    UPDATE edgeloop_rows SET version = :new_version, data = :new_data
    WHERE space = :space AND key = :key AND version = :version
    RETURNING key
), removed AS (
    DELETE FROM edgeloop_rows USING changed
    WHERE edgeloop_rows.space = :other_space AND edgeloop_rows.key = ANY(:removed_keys::text[])
)
SELECT key FROM changed;

-- name: remove.postgresql
DELETE FROM edgeloop_rows WHERE space = :space AND key = ANY(:keys::text[]);

-- name: page
-- The next rows in the order of their keys; {clauses} narrow them further, and {document} is `data`
-- or some columns of it.
SELECT key, version, {document} FROM edgeloop_rows
WHERE space = :space AND key > :after AND key >= :first {clauses}
ORDER BY key LIMIT :size;

-- name: due.sqlite
-- The next rows of a queue that are not hidden any more, each with the row it is about, and the key
-- of the best of all. `skip` leaves out some, for runners that would otherwise all want the same.
WITH open AS (
    SELECT key, version, data FROM edgeloop_rows
    WHERE space = :space AND key > :after AND key < :end
        AND CASE WHEN typeof(json_extract(data, '$.until')) IN ('integer', 'real')
            THEN json_extract(data, '$.until') ELSE 0 END <= :now
    ORDER BY key LIMIT :size + :skip
)
SELECT hint.key, hint.version, hint.data, about.key, about.version, about.data,
    (SELECT min(key) FROM open)
FROM (SELECT key, version, data FROM open ORDER BY key LIMIT :size OFFSET :skip) AS hint
LEFT JOIN edgeloop_rows AS about
    ON about.space = :other_space AND about.key = json_extract(hint.data, '$.model')
ORDER BY hint.key;

-- name: due.postgresql
-- LATERAL and its LIMIT keep the planner from joining all rows of the other space.
WITH open AS (
    SELECT key, version, data FROM edgeloop_rows
    WHERE space = :space AND key > :after AND key < :end
        AND CASE json_typeof(CAST(data AS json) -> 'until')
            WHEN 'number' THEN CAST(CAST(data AS json) ->> 'until' AS float) ELSE 0 END <= :now
    ORDER BY key LIMIT CAST(:size AS int) + CAST(:skip AS int)
)
SELECT hint.key, hint.version, hint.data, about.key, about.version, about.data,
    (SELECT min(key) FROM open)
FROM (SELECT key, version, data FROM open ORDER BY key LIMIT :size OFFSET :skip) AS hint
LEFT JOIN LATERAL (
    SELECT key, version, data FROM edgeloop_rows
    WHERE space = :other_space AND key = CAST(hint.data AS json) ->> 'model' LIMIT 1
) AS about ON true
ORDER BY hint.key;

-- name: rows_of_keys.sqlite
SELECT key, version, data FROM edgeloop_rows
WHERE space = :space AND key IN (SELECT value FROM json_each(:keys));

-- name: rows_of_keys.postgresql
SELECT key, version, data FROM edgeloop_rows
WHERE space = :space AND key = ANY(:keys::text[]);

-- name: versions
SELECT key, version FROM edgeloop_rows WHERE space = :space;

-- name: versions_by_scan.sqlite
-- The same in the order of the file, which costs less than the way from the index to the rows
-- unless they are few of many. The plus keeps SQLite from using the index.
SELECT key, version FROM edgeloop_rows WHERE +space = :space;

-- name: highest_row.sqlite
SELECT max(rowid) FROM edgeloop_rows;

-- name: next_space
SELECT min(space) FROM edgeloop_rows WHERE space > :last AND space < :end;

-- name: spaces
SELECT DISTINCT space FROM edgeloop_rows;

-- name: everything
SELECT space, key, version, data FROM edgeloop_rows
WHERE space > :space OR (space = :space AND key > :key)
ORDER BY space, key LIMIT :size;

-- name: snapshot.postgresql
-- Which transactions a reader sees. Any commit that changes something changes this at once.
SELECT CAST(txid_current_snapshot() AS text);

-- name: now.postgresql
SELECT extract(epoch FROM clock_timestamp());
