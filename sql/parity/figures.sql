-- Figures of one table's buckets: rows, and the sums of two 60-bit parts of every row's hash.
-- Sums, never XOR: equal rows must not cancel out. Run it inside the snapshot that names the LSN.
--
-- <fields>    value of each column as the output function prints it, or NULL, named f1, f2, ...
-- <key>       array of those fields that tell rows apart (all of them for a bag), length-prefixed
-- <row>       array of all of those fields, length-prefixed
-- <relation>  ONLY "schema"."table"
-- <filter>    the publication's row filter, or true
-- <buckets>   number of buckets
--
-- OFFSET 0 keeps the planner from pulling the subqueries up, which would print every value twice.
SELECT ('x' || left(key_hash, 7))::bit(28)::integer % {buckets} AS bucket,
       count(*) AS rows,
       sum(('x' || substr(row_hash, 1, 15))::bit(60)::bigint) AS high,
       sum(('x' || substr(row_hash, 16, 15))::bit(60)::bigint) AS low
FROM (
    SELECT md5(convert_to(concat(VARIADIC {key}), 'UTF8')) AS key_hash,
           md5(convert_to(concat(VARIADIC {row}), 'UTF8')) AS row_hash
    FROM (
        SELECT {fields}
        FROM {relation}
        WHERE {filter}
        OFFSET 0
    ) AS printed
    OFFSET 0
) AS hashed
GROUP BY 1
