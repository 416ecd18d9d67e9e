-- A table that is made while the publication sends nothing stays stale, also after its first copy: nothing would record
-- its rows. From a life of 335 lines.
kind: plain
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: insert into life.t values (1, 'x');
a: update t set v = 'y';
drain: 10
unverified: t
b: alter publication cdc set (publish = '');
drain: 10
a: create table born (id int primary key);
drain: 10
repair: life.born
drain: 10
