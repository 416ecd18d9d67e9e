-- The text that COPY would print of a column. A cast prints some types differently; num_nulls() distinguishes NULL from
-- a row of NULLs.
CASE WHEN pg_catalog.num_nulls({column}) = 0 THEN pg_catalog.concat({column}) END
