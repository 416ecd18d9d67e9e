-- The rows of one table as COPY sends them in binary form; timestamps by stamp.sql, what sends no text by text.sql. Both
-- sides hash exactly this line. Run it inside the snapshot that names the LSN. Filled in: the published columns in attnum
-- order, ONLY "schema"."table" (all of a partitioned table), and the publication's row filter or true.
COPY (SELECT {columns} FROM {relation} WHERE {filter}) TO STDOUT (FORMAT binary)
