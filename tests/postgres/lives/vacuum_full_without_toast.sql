-- VACUUM FULL takes away the TOAST table that nothing needs any more; it was taken for ALTER TABLE. From a life of 207.
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: insert into life.t values (1, 'a'), (2, 'b');
a: alter table t drop column v;
drain: 10
a: vacuum full t;
a: insert into t values (3);
drain: 10
a: alter table t add column w text;
a: insert into t values (4, 'd');
drain: 10
