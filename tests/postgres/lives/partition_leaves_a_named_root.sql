-- A partition that is detached leaves a publication that names its root only, and joins it again where it is attached.
-- What is written between is not sent. From a life of 275 lines.
kind: named
setup: create schema life;
setup: create schema near;
setup: create table life.t (id int primary key, v text);
setup: create table life.p (id int, d int, v text, primary key (id, d)) partition by range (d);
setup: create table life.p1 partition of life.p for values from (0) to (5);
setup: create table life.p2 partition of life.p for values from (5) to (100);
setup: insert into life.p select i, i, 'p' from generate_series(1, 9) as i;
a: insert into t values (1, 'x');
drain: 10
unverified: p1
a: alter table p detach partition p1;
b: update p1 set v = 'x' where id = 3;
drain: 10
a: alter table p attach partition p1 for values from (0) to (5);
b: update p set v = null where id > 3;
drain: 10
repair: life.p1
b: delete from p where id in (4, 8);
drain: 10
