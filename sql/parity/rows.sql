-- Rows of some buckets of one table, in the order of their key hashes, to be merged with the lake's.
-- Placeholders as in figures.sql; <wanted> is the array of bucket numbers.
SELECT key_hash, row_hash, {names}
FROM (
    SELECT *,
           md5(convert_to(concat(VARIADIC {key}), 'UTF8')) AS key_hash,
           md5(convert_to(concat(VARIADIC {row}), 'UTF8')) AS row_hash
    FROM (
        SELECT {fields}
        FROM {relation}
        WHERE {filter}
        OFFSET 0
    ) AS printed
    OFFSET 0
) AS hashed
WHERE ('x' || left(key_hash, 7))::bit(28)::integer % {buckets} = ANY ({wanted})
ORDER BY key_hash COLLATE "C", row_hash COLLATE "C"
