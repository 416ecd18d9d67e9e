-- Workload W2: tiny transactions, as pgbench's simple update makes them: one update and one insert each.
create table public.account (
    id integer primary key,
    branch integer not null,
    balance bigint not null,
    filler text not null
);

create table public.movement (
    id bigint primary key,
    account integer not null,
    delta integer not null,
    at timestamptz not null,
    note text
);

insert into public.account
select i, i % 10, 0, repeat('.', 80)
from generate_series(1, 10000) as i;

create procedure public.load_w2(changes integer)
language plpgsql
as $$
declare
    chosen integer;
    amount integer;
begin
    for n in 1 .. changes / 2 loop
        chosen := n * 7919::bigint % 10000 + 1;
        amount := n * 31 % 10007 - 5000;
        update public.account set balance = balance + amount where id = chosen;
        insert into public.movement
        values (n, chosen, amount, timestamptz '2026-01-01 00:00:00+00' + make_interval(secs => n * 0.001), 'm' || n);
        commit;
    end loop;
end
$$;
