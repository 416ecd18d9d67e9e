-- Workload W5: a DDL command after every thousand changes: a column is renamed, dropped and added again under its old
-- name, added with a default, widened, and changed to another type by an expression, in turn.
create table public.shape (
    id bigint primary key,
    a integer,
    b text,
    c integer
);

create procedure public.load_w5(changes integer)
language plpgsql
as $$
declare
    name text := 'a';
    step integer;
begin
    for n in 1 .. changes loop
        if n % 5 = 4 then
            execute format('update public.shape set %I = %s, b = %L where id = %s', name, n % 1000, 'b' || n, n - 3);
        elsif n % 5 = 0 then
            execute format('delete from public.shape where id = %s', n - 3);
        else
            execute format('insert into public.shape (id, %I, b) values (%s, %s, %L)', name, n, n % 777, 'row ' || n);
        end if;
        if n % 1000 = 0 then
            commit;
            step := n / 1000;
            case step % 5
                when 1 then
                    execute format('alter table public.shape rename column %I to %I', name, 'a' || step);
                    name := 'a' || step;
                when 2 then
                    execute 'alter table public.shape drop column b, add column b text';
                when 3 then
                    execute format('alter table public.shape add column d%s integer default %s', step, step);
                when 4 then
                    execute format('alter table public.shape alter column %I type bigint', name);
                else
                    execute 'alter table public.shape alter column c type integer using coalesce(c, 0) + 1';
            end case;
            commit;
        end if;
    end loop;
    commit;
end
$$;
