-- Session a is the older transaction and commits last: by the order of xids its update came before that of b.
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: insert into life.t values (1, 'x'), (2, 'x');
a: begin;
a: update t set v = 'a' where id = 2;
b: update t set v = 'b' where id = 1;
drain: 1
a: update t set v = 'a' where id = 1;
drain: 10
a: commit;
drain: 1
