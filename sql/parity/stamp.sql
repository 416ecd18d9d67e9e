-- The eight bytes of a timestamp if the type of the lake can hold it; otherwise its text: infinity, BC, the year 10000.
CASE WHEN {column} >= '0001-01-01 00:00:00+00'::pg_catalog.{type} AND {column} < '10000-01-01 00:00:00+00'::pg_catalog.{type}
     THEN pg_catalog.{send}({column}) ELSE pg_catalog.textsend({column}::pg_catalog.text) END
