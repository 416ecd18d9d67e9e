-- A comment on a partition commits before older DDL that moved its root into another published schema: that message shows
-- the partition without the comment, and with one more entry of a publication. From a life of 266 lines.
kind: plain
setup: create schema life;
setup: create schema near;
setup: create schema far;
setup: create type life.mood as enum ('a', 'b', 'c');
setup: create type life.pair as (x int, y text);
setup: create table life.t1 (id int primary key, n numeric(8, 2), v text, m life.mood, big text);
setup: create table life.t2 (a int, b text default 'd', primary key (b, a));
setup: create table life.t3 (a int, v text);
setup: alter table life.t3 replica identity full;
setup: alter table life.t1 alter big set storage external;
setup: create table life.p (id int, d int, v text, primary key (id, d)) partition by range (d);
setup: create table life.p1 partition of life.p for values from (0) to (5);
setup: create table life.p2 partition of life.p for values from (5) to (100);
setup: create table life.h (id int primary key, n int, v text);
setup: create table life.h1 (primary key (id)) inherits (life.h);
setup: insert into life.t1 select i, i, 'v' || i, 'a', repeat(md5(i::text), 200) from generate_series(1, 9) as i;
setup: insert into life.t2 select i, 'k' from generate_series(1, 5) as i;
setup: insert into life.t3 values (1, 'x'), (1, 'x'), (2, null);
setup: insert into life.p select i, i, 'p' from generate_series(1, 9) as i;
setup: insert into life.h select i, i, 'h' from generate_series(1, 3) as i;
setup: insert into life.h1 select i, i, 'h1' from generate_series(4, 6) as i;
drain: 1000000000
c: begin;
c: alter table p set schema near;
a: comment on column p1.v is 'said 352';
c: commit;
a: update p1 set v = '41' where true;
drain: 1000000000
