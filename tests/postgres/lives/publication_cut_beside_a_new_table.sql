-- Tables that a transaction makes while another alters the publication: neither's messages tell of both. From a life of
-- 171 lines; a row of the second is not sent, though the publication is whole before and after.
kind: plain
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: insert into life.t values (1, 'x');
a: update t set v = 'y';
drain: 10
a: begin;
a: create table born (id int primary key);
a: insert into born values (1);
unverified: t
b: alter publication cdc set (publish = 'delete, truncate');
a: commit;
drain: 10
b: alter publication cdc set (publish = 'insert, update, delete, truncate');
a: begin;
a: create table late (id int primary key);
b: alter publication cdc set (publish = 'delete');
a: insert into late values (1);
b: alter publication cdc set (publish = 'insert, update, delete, truncate');
a: commit;
drain: 10
a: insert into late values (2);
drain: 10
