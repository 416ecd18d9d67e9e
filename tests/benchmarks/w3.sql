-- Workload W3: all changes in one transaction, which spills to the server's disk while it is decoded.
create table public.bulk (
    id bigint primary key,
    customer integer not null,
    price numeric(12, 2),
    note text,
    at timestamptz
);

create procedure public.load_w3(changes integer)
language plpgsql
as $$
begin
    insert into public.bulk
    select i, i * 7919 % 999983, (i % 1000003) / 100.0, md5(i::text),
           timestamptz '2026-01-01 00:00:00+00' + make_interval(secs => i * 0.001)
    from generate_series(1, changes) as i;
    commit;
end
$$;
