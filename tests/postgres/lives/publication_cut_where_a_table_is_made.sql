-- One transaction makes a table and cuts the publication: the table's first rows are sent, and no more. From a life of
-- 347 lines.
kind: plain
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: insert into life.t values (1, 'x');
a: update t set v = 'y';
drain: 10
a: begin;
a: create table born as select i as a, 'as' as v from generate_series(1, 3) as i;
unverified: t
a: alter publication cdc set (publish = 'delete');
a: insert into t values (2, 'z');
a: commit;
drain: 10
