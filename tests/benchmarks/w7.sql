-- Workload W7: transactions of ten changes in subtransactions. One subtransaction in five is rolled back, and one
-- transaction in five.
create table public.attempt (
    id bigint primary key,
    n integer not null,
    note text
);

create procedure public.load_w7(changes integer)
language plpgsql
as $$
declare
    first bigint;
begin
    for t in 0 .. changes / 10 - 1 loop
        first := t * 10::bigint;
        for s in 0 .. 4 loop
            begin
                insert into public.attempt values (first + 2 * s, t, md5(t || '/' || s));
                insert into public.attempt values (first + 2 * s + 1, t, null);
                if s = 3 then
                    raise exception 'rolled back';
                end if;
            exception
                when raise_exception then null;
            end;
        end loop;
        if t % 5 = 4 then
            rollback;
        else
            commit;
        end if;
    end loop;
end
$$;
