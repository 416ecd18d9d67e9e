-- The change log has whole old images: of a row with a renamed label by the new name, and it is found by its key.
kind: ticks
setup: create schema life;
setup: create type life.mood as enum ('a', 'b');
setup: create table life.t (id int primary key, m life.mood);
setup: insert into life.t values (1, 'a'), (2, 'b');
a: alter type mood rename value 'a' to 'c';
a: update t set id = 3 where id = 1;
a: delete from t where id = 2;
drain: 10
