-- Behind the cut of a copy a table is dropped: the server prints no default of it any more, in no snapshot. It is red, and
-- gone with the next drain. From a life of 389 lines.
kind: plain
setup: create schema life;
setup: create schema near;
setup: create table life.t1 (id int primary key);
setup: create table life.t2 (a int primary key, b text default 'd');
c: do $$ begin alter table t1 rename to t74; alter table t2 rename to t1; alter table t74 rename to t2; end $$;
drain: 1000000000
cut: awaited
a: do $$ begin drop table t1; create table t1 (id bigint primary key, v text default 'again'); end $$;
copy: life.t1 (a, b)
drain: 10
