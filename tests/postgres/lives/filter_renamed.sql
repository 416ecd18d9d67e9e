-- A filter prints the new name of a renamed column; it was taken for another filter. From a life of 86 lines.
kind: parts
setup: create schema life;
setup: create table life.t (a int, b text default 'd', primary key (b, a));
setup: insert into life.t values (1, 'k'), (2, 'm');
setup: create publication theirs for table life.t (b, a) where (b <> 'k');
a: alter table t rename column b to c;
b: insert into t values (3, 'k'), (4, 'm');
b: update t set c = 'm' where a = 1;
b: update t set c = 'k' where a = 2;
drain: 10
