-- A repair waited without end: for DDL that has not committed where it asked for a table's size, and for a REINDEX that
-- has not where planning opens the indexes. Now its tables stay as they were, and the next cut has them.
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: insert into life.t values (1, 'x'), (2, 'y');
a: begin;
a: insert into t values (3, 'older than the cut');
cut: awaited
b: begin;
b: update t set v = 'z' where id = 1;
a: commit;
b: commit;
c: begin;
c: alter table t add column c int;
copy: life.t
c: insert into t values (4, 'w', 5);
c: commit;
drain: 1
c: begin;
cut: awaited
c: reindex table t;
copy: life.t
c: rollback;
c: begin;
c: update t set c = 6 where id = 2;
b: insert into t values (7, 'seven', 8);
unverified: t
b: alter table t alter c type bigint using c + 1;
c: commit;
b: alter table t alter c type numeric using c + 1;
drain: 10
cut: awaited
b: insert into t values (9, 'behind the cut', 10);
copy: life.t (c)
drain: 1
b: delete from t where id = 3;
drain: 1
