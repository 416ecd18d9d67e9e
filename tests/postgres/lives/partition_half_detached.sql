-- DETACH CONCURRENTLY that is broken off has half detached a partition, which no event trigger captures. From a life of
-- 217 lines.
kind: roots
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: create table life.p (id int, d int, v text, primary key (id, d)) partition by range (d);
setup: create table life.p1 partition of life.p for values from (0) to (5);
setup: create table life.p2 partition of life.p for values from (5) to (100);
setup: insert into life.p select i, i, 'p' from generate_series(1, 9) as i;
setup: create publication theirs for tables in schema life, near with (publish_via_partition_root = true);
a: insert into t values (1, 'x');
a: begin;
a: update p set v = null where id = 7;
unverified: p, p2
b: set statement_timeout = '200ms';
b: alter table p detach partition p2 concurrently;
b: reset statement_timeout;
a: commit;
drain: 10
b: alter table p detach partition p2 finalize;
a: update p2 set v = 'x' where id = 7;
drain: 10
