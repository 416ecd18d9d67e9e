-- Found with the fold made to take an update's unchanged TOAST for NULL; 75 lines of a seed, trimmed to those that show it.
setup: create schema life;
setup: create schema near;
setup: create type life.mood as enum ('a', 'b', 'c');
setup: create table life.t1 (id int primary key, n numeric(8, 2), v text, m life.mood, big text);
setup: create table life.t2 (a int, b text default 'd', primary key (b, a));
setup: create table life.t3 (a int, v text);
setup: alter table life.t3 replica identity full;
setup: alter table life.t1 alter big set storage external;
setup: create table life.p (id int, d int, v text, primary key (id, d)) partition by range (d);
setup: create table life.p1 partition of life.p for values from (0) to (5);
setup: create table life.p2 partition of life.p for values from (5) to (100);
setup: insert into life.t1 select i, i, 'v' || i, 'a', repeat(md5(i::text), 200) from generate_series(1, 9) as i;
setup: insert into life.t2 select i, 'k' from generate_series(1, 5) as i;
setup: insert into life.t3 values (1, 'x'), (1, 'x'), (2, null);
setup: insert into life.p select i, i, 'p' from generate_series(1, 9) as i;
a: alter table t1 add column c72 text default 'it''s', add column c73 boolean;
a: update t1 set c72 = '5' where n is not null;
drain: 1
