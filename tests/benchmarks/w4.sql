-- Workload W4: values of about 20 kB that are stored out of line, and updates of other columns, which do not send them.
-- One change in fifty inserts such a value, and one in a thousand replaces it.
create table public.document (
    id integer primary key,
    title text not null,
    revision integer not null,
    body jsonb not null
);

create function public.body_w4(seed integer) returns jsonb
language sql
as $$
    select jsonb_build_object('seed', seed, 'text', string_agg(md5(seed || '/' || i), ''))
    from generate_series(1, 620) as i
$$;

create procedure public.load_w4(changes integer)
language plpgsql
as $$
declare
    documents integer := 0;
begin
    for n in 0 .. changes - 1 loop
        if n % 50 = 0 then
            documents := documents + 1;
            insert into public.document values (documents, 'title ' || documents, 0, public.body_w4(documents));
        elsif n % 1000 = 999 then
            update public.document set body = public.body_w4(-n), revision = revision + 1 where id = n % documents + 1;
        else
            update public.document set revision = revision + 1, title = 'title ' || n
            where id = n * 7919::bigint % documents + 1;
        end if;
        if n % 100 = 99 then
            commit;
        end if;
    end loop;
    commit;
end
$$;
