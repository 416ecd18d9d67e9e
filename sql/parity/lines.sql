-- The rows of one table as COPY sends them in binary form. Timestamps are sent by stamp.sql, and types whose binary
-- form is not text by text.sql. Both sides hash exactly this line. Run it inside the snapshot that names the LSN. The
-- parameters are the published columns in attnum order, ONLY "schema"."table" (without ONLY for a partitioned table),
-- and the row filter of the publication or true.
COPY (SELECT {columns} FROM {relation} WHERE {filter}) TO STDOUT (FORMAT binary)
