-- DDL of the publication cannot print a default of a table that another transaction locks: its capture fails, by name,
-- and what is published is not known. From a life of 272 lines.
kind: roots
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text default 'd');
setup: create table life.u (id int primary key);
setup: create publication theirs for tables in schema life, near with (publish_via_partition_root = true);
a: insert into u values (1);
drain: 10
b: begin;
b: truncate t;
b: prepare transaction 'g1';
unverified: t, u
a: alter publication theirs set (publish = 'insert');
a: insert into u values (2);
drain: 10
b: commit prepared 'g1';
drain: 10
