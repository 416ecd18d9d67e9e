-- Workload W6: few changes in each of two hundred tables.
do $$
begin
    for t in 1 .. 200 loop
        execute format(
            'create table public.small%s (id integer primary key, name text not null, amount numeric(12, 2), at timestamptz)', t
        );
        execute format(
            'insert into public.small%s select i, ''name '' || i, i / 100.0, ''2026-01-01 00:00:00+00'' from generate_series(1, 1000) as i', t
        );
    end loop;
end
$$;

create procedure public.load_w6(changes integer)
language plpgsql
as $$
begin
    for n in 0 .. changes - 1 loop
        execute format(
            'update public.small%s set amount = amount + 1, name = %L where id = %s',
            n % 200 + 1, 'name ' || n, n / 200 % 1000 + 1
        );
        if n % 10 = 9 then
            commit;
        end if;
    end loop;
    commit;
end
$$;
