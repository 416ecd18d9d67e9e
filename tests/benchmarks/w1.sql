-- Workload W1: transactions of 100 row changes each, 50 inserts, 40 updates and 10 deletes, on a table of ten columns and
-- about 170 bytes a row. 10,000 of them are a million changes. The same call always makes the same changes.
create table public.w1 (
    id bigint primary key,
    customer integer not null,
    quantity integer,
    sku text not null,
    remark text,
    price numeric(12, 2),
    ordered_at timestamptz not null,
    changed_at timestamptz,
    paid boolean not null,
    extra jsonb
);

create table public.fence (
    id integer primary key,
    note text
);

-- Row k (0 to 49) of transaction t has id 50 t + k + 1. Rows 0 to 19 are there to be deleted, rows 20 to 49 to be updated.
create procedure public.load_w1(transactions integer)
language plpgsql
as $$
declare
    start constant timestamptz := '2026-01-01 00:00:00+00';
    t integer;
    k integer;
    target bigint;
    draw integer;
begin
    for t in 0 .. transactions - 1 loop
        for k in 0 .. 49 loop
            target := 50::bigint * t + k + 1;
            insert into public.w1 values (
                target, target * 7457 % 999983, target * 13 % 1009, 'sku-' || to_char(target, 'FM0000000000'),
                md5((target * 3)::text), (target * 7919 % 9999991) / 100.0,
                start + make_interval(secs => t + k * 0.001237), null, target % 3 = 1,
                jsonb_build_object('r', left(md5((target + 5)::text), 8), 'c', target % 1000, 'b', t)
            );
            if k % 5 = 4 then
                -- Fifty transactions later; the first fifty have none so old and delete their own rows.
                target := case
                    when t < 50 then 50::bigint * t + k / 5 + 1
                    when t < 100 then 50::bigint * (t - 50) + 10 + k / 5 + 1
                    else 50::bigint * (t - 50) + k / 5 + 1
                end;
                delete from public.w1 where id = target;
            else
                draw := ('x' || left(md5(t || '/' || k), 7))::bit(28)::integer;
                if t > 0 then
                    target := 50::bigint * (draw % t) + 20 + (draw / 11) % 30 + 1;
                end if;
                update public.w1
                set quantity = draw % 1000,
                    price = (draw % 100000) / 100.0,
                    remark = md5(draw::text),
                    changed_at = start + make_interval(secs => t + k * 0.001239),
                    paid = not paid,
                    extra = jsonb_build_object('r', left(md5(draw::text), 8), 'c', draw % 1000, 'b', t, 'k', k)
                where id = target;
            end if;
            if not found then
                raise exception 'transaction %, row %: no row %', t, k, target;
            end if;
        end loop;
        commit;
    end loop;
end
$$;
