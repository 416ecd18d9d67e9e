-- The traps as plain SQL: what is done to the source, and whether the tables must stay exact or turn stale.
--
-- Each trap has a schema of its own. Its head is its test's name; up to `-- steps` stands what is there before init.
-- A step is one statement, committed on its own unless steps say begin and commit. `b: ...` runs in a second session,
-- `! ...` must fail, `-- drain` drains. Tables must be exact at every drain, but for those that `-- stale` names: they
-- must be stale in the end, for a reason that the pattern finds, and exact again after the remedy. `-- gone` names
-- tables that are dropped in the end, `-- needs` a condition that not every server meets. `look;` takes what SELECT
-- shows between two drains, which the log must show as of there. Schemas NAME__x are the trap's too.
--
-- Traps are played together in a database whose publication holds their schemas; those of `-- group tables` where it
-- names tables, those of `-- group roots` where it sends partitions as their root. One that is `-- alone` concerns the
-- whole database or the publication: it has its own, with a publication of tables where the setup makes none.


-- trap test_trap_041_unchanged_toast
create table doc (id int primary key, big text, n int);
alter table doc alter big set storage external;
insert into doc select i, repeat(chr(96 + i), 5000), i from generate_series(1, 6) as i;
-- steps
update doc set n = 10 where id = 1;
update doc set big = big;
-- drain
update doc set n = n + 1;

-- trap test_trap_042_insert_and_update_in_one_batch
create table doc (id int primary key, big text, n int);
alter table doc alter big set storage external;
insert into doc select 0, '', 0 where false union all select i, repeat(chr(96 + i), 5000), i from generate_series(1, 6) as i;
-- steps
insert into doc values (9, repeat('z', 6000), 1);
update doc set n = 2 where id = 9;
begin;
insert into doc values (10, repeat('w', 6000), 1);
update doc set n = 3 where id = 10;
commit;

-- trap test_trap_043_unchanged_toast_through_key_changes
create table doc (id int primary key, big text, n int);
alter table doc alter big set storage external;
insert into doc select i, repeat(chr(96 + i), 5000), i from generate_series(1, 6) as i;
-- steps
update doc set id = 20 where id = 1;
update doc set id = 30 where id = 20;
-- drain
begin;
update doc set id = 40 where id = 2;
update doc set id = 50 where id = 40;
commit;
-- drain
update doc set n = 0 where id in (30, 50);

-- trap test_trap_044_null_is_not_unchanged
create table doc (id int primary key, big text, n int);
alter table doc alter big set storage external;
insert into doc select i, repeat(chr(96 + i), 5000), i from generate_series(1, 6) as i;
-- steps
update doc set big = null where id = 1;
update doc set n = 7 where id = 1;
-- drain
update doc set n = 8;

-- trap test_trap_045_fold_over_a_delete
create table doc (id int primary key, big text, n int);
alter table doc alter big set storage external;
insert into doc select i, repeat(chr(96 + i), 5000), i from generate_series(1, 6) as i;
-- steps
delete from doc where id = 1;
insert into doc values (1, repeat('new', 2000), 1);
update doc set n = 2 where id = 1;
-- drain
begin;
delete from doc where id = 1;
insert into doc values (1, null, 1);
update doc set n = 3 where id = 1;
commit;

-- trap test_trap_046_full_does_not_stop_unchanged
create table doc (id int primary key, big text, n int);
alter table doc alter big set storage external;
insert into doc select i, repeat(chr(96 + i), 5000), i from generate_series(1, 6) as i;
alter table doc replica identity full;
-- steps
update doc set n = 10 where id = 1;
update doc set id = id + 100;
-- drain
update doc set n = 0;
delete from doc where id = 101;

-- trap test_trap_047_toasted_key
create table k (id text primary key, v int);
alter table k alter id set storage external;
insert into k select string_agg(md5((i * 100 + j)::text), ''), i from generate_series(1, 3) i, generate_series(1, 80) j group by i;
-- steps
update k set v = v + 1;
-- drain
update k set id = left(id, 20) where v = 2;
update k set v = 9;
delete from k where v = 9 and length(id) > 20;

-- trap test_trap_048_primary_key_update
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
update t set id = id + 100;
-- drain
update t set id = 7 where id = 101;
insert into t values (101, 'new');

-- trap test_trap_049_identity_by_another_index
create table t (id int primary key, alt int not null, v text);
create unique index t_alt on t (alt);
alter table t replica identity using index t_alt;
insert into t values (1, 11, 'x'), (2, 12, 'y'), (3, 13, 'z');
-- steps
update t set id = 100 where id = 1;
delete from t where alt = 12;
-- drain
update t set alt = 99, v = 'w' where id = 3;
delete from t where id = 100;

-- trap test_trap_050_identity_index_dropped
create table t (id int not null, v text);
create unique index t_id on t (id);
alter table t replica identity using index t_id;
insert into t values (1, 'x');
-- steps
update t set v = 'y';
drop index t_id;
insert into t values (2, 'z');
! update t set v = 'w';
! delete from t;

-- trap test_trap_053_key_swap
create table t (id int primary key deferrable initially deferred, v text);
alter table t replica identity full;
insert into t values (1, 'a'), (2, 'b'), (3, 'c');
-- steps
update t set id = 3 - id where id < 3;
-- drain
update t set id = id % 3 + 1;

-- trap test_trap_054_duplicates_without_a_key
create table t (a text, n int);
alter table t replica identity full;
insert into t select 'same', 1 from generate_series(1, 3);
insert into t values (null, null), (null, null);
-- steps
delete from t where ctid = (select min(ctid) from t where a = 'same');
update t set n = 2 where ctid = (select min(ctid) from t where a = 'same');
-- drain
delete from t where ctid = (select min(ctid) from t where a is null);
insert into t values ('same', 1);

-- trap test_trap_055_full_matches_by_text
create table t (n numeric, f float8, s text);
alter table t replica identity full;
insert into t values (1.0, '-0', null), (1.00, '0', ''), (1.000, 'NaN', null), (null, null, null);
-- steps
delete from t where n::text = '1.00';
update t set s = 'z' where f::text = '-0';
-- drain
delete from t where n is null;

-- trap test_trap_056_full_flags_every_column_as_key
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
alter table t replica identity full;
-- steps
update t set v = 'z' where id = 1;
update t set id = 4 where id = 2;
-- drain
alter table t replica identity default;
update t set id = 5 where id = 4;
delete from t where id = 3;

-- trap test_trap_057_identity_changes_in_mid_stream
create table doc (id int primary key, big text, n int);
alter table doc alter big set storage external;
insert into doc select i, repeat(chr(96 + i), 5000), i from generate_series(1, 6) as i;
create unique index doc_n on doc (n);
alter table doc alter n set not null;
-- steps
begin;
update doc set id = 11 where id = 1;
alter table doc replica identity full;
update doc set id = 12 where id = 2;
alter table doc replica identity using index doc_n;
update doc set n = 13, id = 13 where id = 3;
delete from doc where id = 4;
commit;
-- drain
alter table doc replica identity default;
update doc set n = n + 100;

-- trap test_trap_058_empty_updates_and_upserts
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
update t set v = v;
insert into t values (1, 'q') on conflict (id) do update set v = excluded.v;
insert into t values (1, 'r') on conflict do nothing;
insert into t values (9, 's') on conflict (id) do update set v = 'no';

-- trap test_trap_059_missing_attribute_under_full
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
alter table t replica identity full;
-- steps
alter table t add column c int default 42;
update t set v = 'z' where id = 1;
delete from t where id = 2;
-- drain
update t set c = null where id = 3;
alter table t add column d text default 'it''s';
delete from t where id = 3;

-- trap test_trap_060_keys_that_the_source_calls_equal
-- needs count(*) > 50 from pg_collation where collprovider = 'i'
create collation ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
create table t (id text collate ci primary key, v int);
insert into t values ('Abc', 1), ('x ', 2);
-- steps
update t set id = 'aBC' where id = 'ABC';
! insert into t values ('ABC', 3);
-- drain
update t set v = 9 where id = 'abc';
delete from t where id = 'ABC';

-- trap test_trap_061_truncate
create table p (id int generated always as identity primary key, v text);
create table c (id int primary key, p int references p);
insert into p (v) values ('a'), ('b');
insert into c values (1, 1);
-- steps
begin;
insert into p (v) values ('c');
truncate p restart identity cascade;
insert into p (v) values ('d');
insert into c values (7, 1);
commit;
-- drain
truncate p, c;
insert into p (v) values ('e');

-- trap test_trap_062_rolled_back_savepoint
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
begin;
insert into t values (10, 'kept');
savepoint s;
insert into t select i, repeat('x', 500) from generate_series(100, 900) i;
update t set v = 'undone';
rollback to s;
insert into t values (11, 'kept');
commit;

-- trap test_trap_063_prepared_transaction
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
begin;
insert into t values (20, 'early');
update t set v = 'prepared' where id = 1;
prepare transaction 't063';
-- drain
insert into t values (21, 'later');
-- drain
commit prepared 't063';
update t set v = v || '!' where id in (1, 20);

-- trap test_trap_064_message_outside_transactions
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
begin;
select pg_logical_emit_message(false, 'cdc.ddl', 'x');
insert into t values (30, 'undone');
rollback;
insert into t values (31, 'kept');
select pg_logical_emit_message(false, 'app', 'y');

-- trap test_trap_065_ddl_in_an_aborted_savepoint
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
begin;
savepoint s;
alter table t add column gone int;
insert into t values (40, 'undone', 1);
rollback to s;
alter table t add column kept int default 5;
insert into t values (41, 'kept', 1);
commit;
insert into t values (42, 'k');

-- trap test_trap_066_empty_transactions
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
begin;
select pg_current_xact_id();
commit;
-- drain
create temp table tmp (i int);
drop table tmp;
update t set v = 'z';

-- trap test_trap_067_origin
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
select pg_replication_origin_create('t067');
select pg_replication_origin_session_setup('t067');
insert into t values (50, 'from elsewhere');
select pg_replication_origin_session_reset();
insert into t values (51, 'from here');
select pg_replication_origin_drop('t067');

-- trap test_trap_068_alter_type_using
-- stale t: rewritten by ALTER TABLE
create table t (id int primary key, n int);
insert into t values (1, 10), (2, 20);
-- steps
alter table t alter n type text using n || '!';
insert into t values (3, '30');

-- trap test_trap_068_the_same_type_using
-- stale t: rewritten by ALTER TABLE
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
alter table t alter v type text using v || '!';

-- trap test_trap_068_inside_a_function
-- stale t: rewritten by
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
do $$ begin execute 'alter table t alter v type text using upper(v)'; end $$;

-- trap test_trap_068_scale
-- stale t: rewritten by ALTER TABLE
create table t (id int primary key, n numeric(10,4));
insert into t values (1, 1.5), (2, 2.25);
-- steps
alter table t alter n type numeric(10,2);

-- trap test_trap_068_widening_keeps_every_text
create table t (id int primary key, s varchar(10), n numeric(10,2), m smallint);
insert into t values (1, 'a', 1.50, 1), (2, 'b', 2.25, 2);
-- steps
alter table t alter id type bigint;
alter table t alter s type varchar(20), alter n type numeric(12,2);
-- drain
alter table t alter s type text;
alter table t alter m type int;
update t set s = s || '!' where id = 1;
delete from t where id = 2;
insert into t values (5000000000, 'c', 1234567890.12, 70000);

-- trap test_trap_068_several_commands_in_one_string
-- stale t: rewritten by
create table t (id int primary key, n int);
insert into t values (1, 10);
-- steps
do $$ begin alter table t alter n type bigint; alter table t alter n type bigint using n + 1; end $$;

-- trap test_trap_069_volatile_default_and_serial
-- stale v: column r: added with a default in a rewrite
-- stale s: column n: added with
-- stale i: column n: added with
-- stale w: column a: added with a default in a rewrite
-- stale x: column a: added with a default in a rewrite
create table v (id int primary key);
insert into v values (1), (2);
create table s (id int primary key);
insert into s values (1), (2);
create table i (id int primary key);
insert into i values (1), (2);
create domain d as int default 7;
create domain dc as int default 8 check (value > 0);
create table u (id int primary key);
insert into u values (1);
create table w (id int primary key);
insert into w values (1);
create type word;
create function word_in(cstring) returns word language internal immutable strict as 'textin';
create function word_out(word) returns cstring language internal immutable strict as 'textout';
create type word (input = word_in, output = word_out, like = text, default = 'said');
create table x (id int primary key);
insert into x values (1);
-- steps
alter table v add column r float8 default random();
alter table s add column n serial;
alter table i add column n int generated always as identity;
alter table u add column a d;
alter table w add column a dc;
alter table x add column a word, add column g int generated always as (id + 1) stored;
insert into v (id) values (3);
insert into s (id) values (3);
insert into i (id) values (3);

-- trap test_trap_070_constant_default
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
alter table t add column d int default 42;
update t set v = 'z' where id = 1;
insert into t values (9, 'n', 1);
-- drain
alter table t alter d set default 43;
alter table t add column at timestamptz default now(), add column e text default '';
insert into t (id) values (10);
-- drain
alter table t alter d drop default;
update t set d = null where id = 2;

-- trap test_trap_071_vacuum_full_and_cluster_are_no_rewrite
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
alter table t add column d int default 42;
-- steps
alter table t add column e text default 'x';
vacuum full t;
-- drain
cluster t using t_pkey;
update t set v = 'q' where id = 1;
-- drain
alter table t add column f int default 1;
cluster t;
insert into t values (4, 'a', 1, 'b', 2);

-- trap test_trap_072_create_table_as
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
create table c as select * from t;
select id, v into s from t where id < 3;
alter table c replica identity full;
delete from c where id = 1;
-- drain
begin;
create table e as select 1 as a;
insert into e values (2);
alter table e add column b int default 3;
insert into e values (4, 5);
commit;
create table n as select 1 as x with no data;

-- trap test_trap_073_drop
-- gone a b brief
create table a (id int primary key);
create table b (id int primary key);
insert into a values (1);
insert into b values (1);
-- steps
insert into a values (2);
drop table a;
begin;
insert into b values (2);
drop table b;
commit;
create table kept (id int primary key);
insert into kept values (1);
begin;
create table brief (id int);
insert into brief values (1);
drop table brief;
commit;

-- trap test_trap_074_cascade_from_a_type
create type mood as enum ('sad', 'ok');
create table t (id int primary key, m mood, v text);
insert into t values (1, 'ok', 'x');
-- steps
insert into t values (2, 'sad', 'y');
drop type mood cascade;
insert into t values (3, 'z');
update t set v = 'w' where id = 1;

-- trap test_trap_075_partition_parent
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
alter table r add column c int default 7;
insert into r values (2, 'c', 1), (12, 'd', 2);
-- drain
alter table r drop column v;
insert into r values (3, 3);
create table r3 partition of r for values from (20) to (30);
insert into r values (21, 4);
update r set c = 0 where id = 11;
alter table r rename column c to d;
insert into r values (22, 5);

-- trap test_trap_075_partitions_rewritten_by_their_root
-- stale told1: rewritten by
-- stale told11: rewritten by
create table r (id int primary key, n smallint, v varchar(9)) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table s partition of r for values from (10) to (20) partition by range (id);
create table s1 partition of s for values from (10) to (20);
create table up (id int primary key, n smallint);
create table down (primary key (id)) inherits (up);
create table told (id int primary key, n int) partition by range (id);
create table told1 partition of told for values from (0) to (10);
create table told2 partition of told for values from (10) to (20) partition by range (id);
create table told11 partition of told2 for values from (10) to (20);
insert into r values (1, 1, 'a'), (11, 11, 'b');
insert into up values (1, 1);
insert into down values (2, 2);
insert into told values (1, 1), (11, 11);
-- steps
alter table r alter n type int;
insert into r values (2, 70000, 'c'), (12, -70000, 'd');
alter table up alter n type bigint;
-- drain
alter table r alter n type numeric, alter v type text, add column g int generated always as (n + 1) stored;
update r set v = 'e' where id in (1, 11);
alter table up alter n type numeric, add column g int generated always as (id) stored;
-- drain
alter table told alter n type bigint using n + 1;

-- trap test_trap_076_replica_role
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
set session_replication_role = replica;
alter table t add column c int default 1;
insert into t values (4, 'r', 2);
alter table t drop column v;
set session_replication_role = origin;
insert into t values (5, 3);

-- trap test_trap_077_enum_renamed_twice
create type mood as enum ('a', 'b', 'c');
create table t (id int primary key, m mood);
insert into t values (1, 'a'), (2, 'b');
-- steps
insert into t values (3, 'a');
alter type mood rename value 'a' to 'aa';
insert into t values (4, 'aa');
-- drain
alter type mood rename value 'aa' to 'aaa';
insert into t values (5, 'aaa');
alter type mood add value 'z' before 'b';
insert into t values (6, 'z');
-- drain
alter type mood rename value 'aaa' to 'a';
update t set m = 'b' where id = 3;

-- trap test_trap_077_domain_over_an_enum_renamed
create type mood as enum ('a', 'b');
create domain dm as mood;
create table t (id int primary key, m dm);
insert into t values (1, 'a');
-- steps
alter type mood rename value 'a' to 'x';
insert into t values (2, 'x');

-- trap test_trap_077_label_taken_over
-- stale t: column m: enum label 'a' was taken over
create type mood as enum ('a', 'b');
create table t (id int primary key, m mood);
insert into t values (1, 'a'), (2, 'b');
-- steps
alter type mood rename value 'a' to 'c';
-- drain
alter type mood rename value 'b' to 'a';
insert into t values (3, 'a');

-- trap test_trap_077_label_given_again
-- stale t: column m: enum label 'a' was taken over
create type mood as enum ('a', 'b');
create table t (id int primary key, m mood);
insert into t values (1, 'a'), (2, 'b');
-- steps
alter type mood rename value 'a' to 'c';
alter type mood add value 'a';
insert into t values (3, 'a');

-- trap test_trap_077_rows_distinguished_by_a_renamed_label
-- stale k: rows are identified by it
-- stale f: rows are identified by it
create type mood as enum ('a', 'b');
create table k (m mood primary key, v int);
create table f (m mood, v int);
alter table f replica identity full;
insert into k values ('a', 1), ('b', 2);
insert into f values ('a', 1), ('b', 2);
-- steps
alter type mood rename value 'a' to 'c';
update k set v = 9 where m = 'c';
delete from f where m = 'c';

-- trap test_trap_077_a_relabelled_column_joins_the_key
-- stale k: rows are identified by it now
-- stale f: rows are identified by it now
create type mood as enum ('a', 'b');
create table k (id int primary key, m mood not null, v int);
create table f (id int primary key, m mood, v int);
insert into k values (1, 'a', 0), (2, 'b', 0);
insert into f values (1, 'a', 0);
-- steps
alter type mood rename value 'a' to 'x';
-- drain
alter table k drop constraint k_pkey, add primary key (id, m);
alter table f replica identity full;
update k set v = 9 where id = 1;
update f set v = 9 where id = 1;

-- trap test_trap_077_array_of_enum_renamed
create type mood as enum ('a', 'b', 'c');
create domain moods as mood[];
create table t (id int primary key, m mood[], d moods);
insert into t values (1, '{a,b}', '{c,a}'), (2, '{{a,null},{b,a}}', '{}'), (3, '[0:1]={a,a}', null);
-- steps
alter type mood rename value 'a' to 'x';
insert into t values (4, '{x,b,null}', '{x}');
-- drain
alter type mood rename value 'x' to 'y';
update t set d = '{y}' where id = 1;

-- trap test_trap_077_range_of_enum_renamed
create type mood as enum ('a', 'b', 'c');
create type moods as range (subtype = mood, multirange_type_name = mood_multirange);
create table t (id int primary key, r moods, l moods[], m mood_multirange);
insert into t values (1, '[a,b)', '{"[a,c]",empty}', '{[a,b),[c,)}'), (2, 'empty', '{"(,a]"}', '{}');
-- steps
alter type mood rename value 'a' to 'x';
insert into t values (3, '(x,c]', null, '{[x,b]}');

-- trap test_trap_077_composite_of_enum_renamed
-- stale c: the type inside it
-- stale d: the type inside it
create type mood as enum ('a', 'b');
create type pair as (x text, m mood);
create table c (id int primary key, p pair);
create table d (id int primary key, p pair[]);
insert into c values (1, '(a,a)');
insert into d values (1, '{"(a,a)"}');
-- steps
alter type mood rename value 'a' to 'x';

-- trap test_trap_077_array_of_enum_with_a_label_that_is_quoted
-- stale t: may be quoted
-- stale later: may be quoted
-- stale k: rows are identified by it
create type mood as enum ('a', 'b', '1,a,2');
create type other as enum ('a', 'b');
create table t (id int primary key, m mood[]);
create table later (id int primary key, m other[]);
create table k (m other[] primary key, v int);
insert into t values (1, '{a,"1,a,2"}');
insert into later values (1, '{a}');
insert into k values ('{a}', 1);
-- steps
alter type mood rename value 'a' to 'x';
alter type other rename value 'a' to 'x';
-- drain
alter type other add value 'empty';

-- trap test_trap_077_array_of_enum_taken_over
-- stale t: enum label 'a' was taken over
create type mood as enum ('a', 'b');
create table t (id int primary key, m mood[]);
insert into t values (1, '{a,b}');
-- steps
alter type mood rename value 'a' to 'c';
-- drain
alter type mood rename value 'b' to 'a';
insert into t values (2, '{a}');

-- trap test_trap_078_composite_attribute
-- stale t: type
-- stale a: type
-- stale n: type
-- stale other: type
create type pair as (x int, y int);
create type nest as (p pair, z int);
create table t (id int primary key, p pair);
create table a (id int primary key, p pair[]);
create table n (id int primary key, p nest);
create table other (id int primary key, p pair);
insert into t values (1, '(1,2)');
insert into a values (1, '{"(1,2)"}');
insert into n values (1, '("(1,2)",3)');
-- steps
alter type pair add attribute w int;
insert into t values (2, '(1,2,3)');

-- trap test_trap_078_composite_attribute_renamed
create type pair as (x int, y int);
create table t (id int primary key, p pair);
insert into t values (1, '(1,2)');
-- steps
alter type pair rename attribute x to ex;
insert into t values (2, '(3,4)');

-- trap test_trap_078_row_type_of_another_table
-- stale t: type
create table u (a int primary key, b text);
create table t (id int primary key, r u);
insert into u values (1, 'x');
insert into t values (1, '(1,x)');
-- steps
alter table u add column c int;
insert into u values (2, 'y', 3);
insert into t values (2, '(2,y,3)');

-- trap test_trap_078_typed_table
-- stale t: rewritten
-- stale e: rewritten
create type pair as (x int, y int);
create table t of pair (primary key (x));
create table e of pair;
alter table e replica identity full;
insert into t values (1, 2), (3, 4);
insert into e values (1, 2);
-- steps
alter type pair rename attribute y to z cascade;
insert into t values (5, 6);
alter type pair add attribute w int cascade;
update t set w = 7 where x = 1;
delete from t where x = 3;
-- drain
alter type pair drop attribute z cascade;
insert into t values (8, 9);
delete from e;
update t set w = 1 where x = 5;
-- drain
alter type pair alter attribute w type text cascade;
insert into t values (10, 'ten');

-- trap test_trap_079_domain_over_domain
create domain d1 as numeric(10,2) check (value > 0);
create domain d2 as d1 not null default 5;
create table t (id int primary key, a d2, b d1[]);
insert into t values (1, 1.50, '{1.25,2}');
-- steps
insert into t values (2, 2.5, null);
alter domain d1 drop constraint d1_check;
alter domain d2 rename to d3;
insert into t values (3, -1, '{-1.00}');
alter domain d3 drop not null;
alter table t add column c d3;
update t set a = 9 where id = 1;

-- trap test_trap_080_column_names_swapped
create table t (id int primary key, a text, b text);
insert into t values (1, 'a1', 'b1'), (2, 'a2', 'b2');
-- steps
begin;
alter table t rename a to tmp;
alter table t rename b to a;
alter table t rename tmp to b;
commit;
insert into t (id, a, b) values (3, 'in a', 'in b');
update t set a = 'new a' where id = 1;
-- drain
update t set b = 'new b' where id = 2;

-- trap test_trap_081_drop_and_add_again
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
alter table t drop column v;
alter table t add column v int;
insert into t values (9, 90);
-- drain
alter table t drop column v;
alter table t add column v int;
insert into t values (10, 100);
update t set v = 1 where id = 1;

-- trap test_trap_082_drop_and_create_again
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
begin;
insert into t values (4, 'last');
drop table t;
create table t (id int primary key, v text);
insert into t values (1, 'new life');
commit;
-- drain
update t set v = 'newer';
drop table t;
create table t (id text primary key);
insert into t values ('k');

-- trap test_trap_083_tables_swapped
-- gone old
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
create table shadow (id bigint primary key, v text, extra int);
insert into shadow select id, v, 0 from t;
-- steps
begin;
alter table t rename to old;
alter table shadow rename to t;
commit;
insert into t values (100, 'to the new', 1);
insert into old values (101, 'to the old');
-- drain
drop table old;
update t set extra = 5;

-- trap test_trap_084_dropped_before_the_drain
-- gone t
create type mood as enum ('x');
create table t (id int primary key, m mood);
insert into t values (1, 'x');
-- steps
insert into t values (2, 'x');
update t set id = 3 where id = 1;
drop table t;
drop type mood;

-- trap test_trap_085_shape_per_event
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
begin;
insert into t values (10, 'two');
alter table t add column c int default 1;
insert into t values (11, 'three', 3);
alter table t drop column v;
insert into t values (12, 4);
alter table t rename c to v;
insert into t values (13, 5);
commit;

-- trap test_trap_086_unlogged_trip
-- stale t: persistence changed|joined the publication
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
-- steps
alter table t set unlogged;
insert into t values (9, 'lost');
alter table t set logged;
insert into t values (10, 'sent');

-- trap test_trap_087_primary_key_changed
create table t (a int not null, b int not null, v text, constraint pk primary key (a));
alter table t alter v set storage external;
insert into t select i, i * 10, repeat('v', 3000) || i from generate_series(1, 4) i;
-- steps
update t set a = 11 where a = 1;
alter table t drop constraint pk;
alter table t add constraint pk primary key (b);
update t set b = 21 where b = 20;
update t set a = 0 where b = 30;
delete from t where b = 40;
-- drain
begin;
alter table t drop constraint pk, add primary key (b, a);
update t set a = a + 1000;
insert into t values (1, 21, 'w');
commit;

-- trap test_trap_087_key_over_an_added_column
create table t (id int primary key, v text);
create table u (id int not null primary key, v text);
insert into t values (1, 'a'), (2, 'b'), (3, 'c');
insert into u values (1, 'a'), (2, 'b'), (3, 'c');
-- steps
alter table t add column tenant int not null default 1, drop constraint t_pkey, add primary key (tenant, id);
update t set v = 'z' where id = 1;
delete from t where id = 2;
-- drain
alter table u add column tenant int not null default 1;
insert into u values (4, 'd', 2);
alter table u drop constraint u_pkey, add primary key (id, tenant);
update u set v = 'z' where id = 1;
update u set tenant = 5 where id = 3;
delete from u where id in (2, 4);
-- drain
update t set tenant = 7 where id = 3;

-- trap test_trap_088_ddl_without_a_relation
create type mood as enum ('a');
create table t (id int primary key, v text, m mood);
insert into t values (1, 'x', 'a');
-- steps
alter table t alter v set default 'd';
alter table t alter v set not null;
alter type mood add value 'b';
insert into t (id, m) values (2, 'b');
alter table t alter v drop not null;
insert into t values (3, null);
-- drain
alter table t add check (id > 0);
comment on table t is 'said';
create index on t (v);
insert into t values (4);

-- trap test_trap_096_attach_and_detach_leave_leaves_alone
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table alone (id int primary key, v text);
insert into r values (1, 'a');
insert into alone values (11, 'b');
-- steps
alter table r attach partition alone for values from (10) to (20);
insert into r values (12, 'c');
-- drain
alter table r detach partition r1;
insert into r1 values (2, 'd');
alter table r detach partition alone concurrently;
insert into alone values (13, 'e');

-- trap test_trap_096_default_partition
create table r (id int, k int, v text, primary key (id, k)) partition by list (k);
create table r1 partition of r for values in (1);
create table rd partition of r default;
insert into r values (1, 1, 'a'), (2, 2, 'b'), (3, 3, 'c');
-- steps
insert into r values (4, 4, 'd');
update r set k = 4 where id = 1;
begin;
alter table r detach partition rd;
create table r4 partition of r for values in (4);
insert into r select * from rd where k = 4;
delete from rd where k = 4;
alter table r attach partition rd default;
commit;
-- drain
update r set k = 9 where id = 4;

-- trap test_trap_096_inheritance
create table p (id int primary key);
create table c (id int primary key);
insert into p values (1);
insert into c values (2);
-- steps
alter table c inherit p;
insert into c values (3);
alter table p add column v int default 4;
-- drain
alter table c no inherit p;
insert into p values (5);

-- trap test_trap_098_row_movement
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
alter table r1 alter v set storage external;
insert into r values (1, repeat('a', 4000)), (11, 'b');
-- steps
update r set id = 12 where id = 1;
update r set id = 2 where id = 11;

-- trap test_trap_099_materialized_views_are_silent
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y'), (3, null);
create materialized view m as select * from t;
create unique index on m (id);
create view w as select * from t;
-- steps
insert into t values (9, 'm');
refresh materialized view concurrently m;
refresh materialized view m;
drop view w;

-- trap test_trap_147_lastval_is_the_users
create sequence s start 41;
create table t (id int primary key);
-- steps
select nextval('s');
alter table t add column v int;
insert into t select lastval();

-- trap test_trap_152_enum_renamed_while_a_writer_is_open
create type mood as enum ('a', 'b');
create table t (id int primary key, m mood);
insert into t values (1, 'a');
-- steps
b: begin;
b: insert into t values (2, 'a');
alter type mood rename value 'a' to 'x';
insert into t values (3, 'x');
-- drain
b: insert into t values (4, 'b');
b: commit;
-- drain
update t set m = 'b' where id = 1;

-- trap test_trap_076_rewritten_with_event_triggers_off
-- needs current_setting('event_triggers', true) is not null
-- stale t: rewritten without a captured event
-- stale n: rewritten without a captured event
-- stale heard: rewritten without a captured event
-- stale later: rewritten without a captured event
-- stale r1: rewritten without a captured event
-- stale trip: rewritten without a captured event
create table t (id int primary key, v text);
create table n (id int primary key, n int);
create table heard (id int primary key, v text, n int);
create table later (id int primary key, n int);
create table r (id int, v int, primary key (id)) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table trip (id int primary key, v text);
create table full_of_it (id int primary key, n int);
create table emptied (id int primary key, n int);
create table granted (id int primary key, v text);
insert into t values (1, 'x');
insert into n values (1, 1);
insert into heard values (1, 'x', 1);
insert into later values (1, 1);
insert into r values (1, 1);
insert into trip values (1, 'x');
insert into full_of_it values (1, 1);
insert into emptied values (1, 1);
insert into granted values (1, 'x');
-- steps
set event_triggers = off;
alter table t alter v type text using upper(v);
alter table n alter n type int using n + 1;
alter table heard alter v type text using upper(v);
alter table later alter n type int using n + 1;
alter table r alter v type int using v + 1;
alter table trip set unlogged;
insert into trip values (2, 'lost');
alter table trip set logged;
reset event_triggers;
alter table heard alter n type bigint;
alter table later add column c int;
alter table full_of_it add column m int default 5;
truncate emptied;
alter table emptied alter n type bigint;
insert into emptied values (2, 5000000000);
grant select (v) on granted to public;
vacuum full granted;
-- drain
vacuum full full_of_it;
-- drain
vacuum full full_of_it;
begin;
savepoint s;
alter table full_of_it rename n to o;
alter table full_of_it alter o type bigint;
release s;
alter table full_of_it add column p int default 6;
commit;
insert into full_of_it values (2, 5000000000, 1, 2);

-- trap test_trap_076_columns_changed_with_event_triggers_off
-- needs current_setting('event_triggers', true) is not null
-- stale t: column w: changed without a captured event
-- stale g: column v: dropped without a captured event
create table t (id int primary key, v text);
create table g (id int primary key, v text);
insert into t values (1, 'x');
insert into g values (1, 'x');
-- steps
set event_triggers = off;
alter table t rename v to w;
alter table g drop column v;
reset event_triggers;
alter table t add column c int;
alter table g add column c int;

-- trap test_trap_079_an_attribute_dropped_by_cascade
-- stale t: type
-- stale d: type
create type inner_type as enum ('a');
create type pair as (x int, m inner_type);
create domain dom as int;
create type dompair as (x int, m dom);
create table t (id int primary key, p pair);
create table d (id int primary key, p dompair);
insert into t values (1, '(1,a)');
insert into d values (1, '(1,2)');
-- steps
drop type inner_type cascade;
drop domain dom cascade;

-- trap test_trap_085_a_snapshot_older_than_the_log
-- stale t: older than
create type mood as enum ('a');
create table t (id int primary key, m mood);
create table u (id int primary key, m mood);
insert into t values (1, 'a');
insert into u values (1, 'a');
-- steps
b: begin;
b: alter type mood add value 'z';
alter table t add column c int default 5;
b: commit;
vacuum full t;
alter table t add column d int;
alter table u add column d int;

-- trap test_trap_085_a_snapshot_that_says_nothing_new
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
b: begin;
b: alter table r1 set (fillfactor = 70);
create table r3 partition of r for values from (20) to (30);
insert into r values (21, 'c');
b: commit;
alter table r2 set (fillfactor = 70);

-- trap test_trap_085_a_transaction_that_reads_an_older_catalog
-- stale t: DDL capture failed|changed without a captured event
create table t (id int primary key);
insert into t values (1);
-- steps
b: begin isolation level repeatable read;
b: select 1;
alter table t add column c int default 5;
b: alter table t add column d int;
b: commit;
alter table t add column e int;

-- trap test_trap_068_inside_another_alter_table
-- stale t: rewritten by
create table t (id int primary key, n int);
create schema trap_068_inside;
create table trap_068_inside.t (id int primary key);
insert into t values (1, 10);
insert into trap_068_inside.t values (1);
create function hidden() returns int language plpgsql as
$$ begin alter table t alter n type bigint using n + 1; return 1; end $$;
-- steps
alter table trap_068_inside.t add column x int default hidden();

-- trap test_trap_069_set_expression
-- needs current_setting('server_version_num')::int >= 170000
create table t (id int primary key, a int, g int generated always as (a + 1) stored);
insert into t (id, a) values (1, 1);
-- steps
alter table t alter g set expression as (a * 10);
insert into t (id, a) values (2, 2);

-- trap test_trap_069_drop_expression
-- stale t: column g: joined the publication
create table t (id int primary key, a int, g int generated always as (a + 1) stored);
insert into t (id, a) values (1, 1);
-- steps
alter table t alter g drop expression;
update t set g = 7 where id = 1;
insert into t values (2, 2, 2);

-- trap test_trap_071_set_access_method
-- stale t: rewritten by ALTER TABLE
create access method h2 type table handler heap_tableam_handler;
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter table t set access method h2;
insert into t values (2, 'y');

-- trap test_trap_078_composite_attribute_dropped
-- stale t: the composite type
create type pair as (x int, y int);
create table t (id int primary key, p pair);
insert into t values (1, '(1,2)');
-- steps
insert into t values (2, '(3,4)');
alter type pair drop attribute x;
insert into t values (3, '(5)');

-- trap test_trap_068_precision
-- stale shorter: rewritten by ALTER TABLE
create table t (id int primary key, a timestamp(3), b timestamptz(2), c interval(1), d varbit(4), e varchar(4));
create table shorter (id int primary key, a timestamp, b interval);
insert into t values (1, '2026-01-02 03:04:05.678', '2026-01-02 03:04:05.67+00', '1 day 2.5', b'101', 'x');
insert into t (id) values (2);
insert into t values (3, '2026-01-02 03:04:05', '2026-01-02 03:04:05+00', '1.0', b'', '');
insert into shorter values (1, '2026-01-02 03:04:05.678901', '1.234567');
-- steps
alter table t alter a type timestamp(5), alter b type timestamptz(6), alter c type interval(3), alter d type varbit(8);
insert into t values (4, '2026-01-02 03:04:05.67891', '2026-01-02 03:04:05.678912+00', '2.345', b'10101010', 'y');
alter table shorter alter a type timestamp(2), alter b type interval(0);
-- drain
alter table t alter a type timestamp, alter b type timestamptz, alter c type interval, alter d type varbit;
alter table t alter e type varchar;
update t set c = '9.876543', d = b'1010101010' where id = 1;
delete from t where id = 2;

-- trap test_trap_068_types_of_one_form
-- stale o: column o: type changed from oid to integer
-- stale i: column i: type changed from integer to oid
-- stale j: rewritten by ALTER TABLE
-- stale b: rewritten by ALTER TABLE
create table o (id int primary key, o oid);
create table i (id int primary key, i int);
create table j (id int primary key, j json);
create table b (id int primary key, b jsonb);
insert into o values (1, 4294967295);
insert into i values (1, -1);
insert into j values (1, '{"b": 1.0, "a":2, "a":3}');
insert into b values (1, '{"b": 1.0}');
-- steps
alter table o alter o type int;
alter table i alter i type oid;
alter table j alter j type jsonb;
alter table b alter b type json;
insert into o values (2, 5);

-- trap test_trap_080_column_renamed
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter table t rename v to w;
insert into t (id, w) values (2, 'y');

-- trap test_trap_081_column_dropped
create table t (id int primary key, v text, w int);
insert into t values (1, 'x', 1);
-- steps
alter table t drop column v;
insert into t values (2, 2);
update t set w = 3 where id = 1;

-- trap test_trap_083_table_renamed
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter table t rename to u;
insert into u values (2, 'y');

-- trap test_trap_083_moved_to_another_schema
-- group tables
create table t (id int primary key, v text);
create schema trap_083_moved_to_another_schema__there;
insert into t values (1, 'x');
-- steps
alter table t set schema trap_083_moved_to_another_schema__there;
insert into trap_083_moved_to_another_schema__there.t values (2, 'y');

-- trap test_trap_083_schema_renamed
-- group tables
create schema trap_083_schema_renamed__here;
create table trap_083_schema_renamed__here.t (id int primary key, v text);
create type trap_083_schema_renamed__here.mood as enum ('a');
create table u (id int primary key, m trap_083_schema_renamed__here.mood);
insert into trap_083_schema_renamed__here.t values (1, 'x');
insert into u values (1, 'a');
-- steps
alter schema trap_083_schema_renamed__here rename to trap_083_schema_renamed__there;
insert into trap_083_schema_renamed__there.t values (2, 'y');
insert into u values (2, 'a');

-- trap test_trap_083_swapped_under_an_explicit_publication
-- group tables
-- stale t: a new table under the name of a captured one
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
create table shadow (id bigint primary key, v text);
insert into shadow select * from t;
begin;
alter table t rename to t_old;
alter table shadow rename to t;
commit;
insert into t values (9, 'unheard');
insert into t_old values (10, 'heard');

-- trap test_trap_082_made_again_under_an_explicit_publication
-- group tables
-- stale t: a new table under the name of a captured one
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
drop table t;
create table t (id int primary key, v text);
insert into t values (9, 'unheard');

-- trap test_trap_072_select_into
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y');
-- steps
select id, v into s from t;
insert into s values (3, 'z');

-- trap test_trap_072_create_table_of_a_query
create table t (id int primary key, v text);
insert into t values (1, 'x'), (2, 'y');
-- steps
create table c as select * from t;
insert into c values (3, 'z');

-- trap test_trap_072_create_table_like
create table t (id int primary key, v text default 'd', g int generated always as identity);
-- steps
create table l (like t including all);
insert into l (id) values (1);
create table p (a int references l) partition by list (a);
create table p1 partition of p for values in (1) partition by list (a);
create table p11 partition of p1 for values in (1);
insert into p values (1);

-- trap test_trap_073_drop_owned
-- gone t
do $$ begin create role trap_073_owner; exception when duplicate_object then null; end $$;
create table t (id int primary key);
alter table t owner to trap_073_owner;
insert into t values (1);
create table kept (id int primary key);
insert into kept values (1);
-- steps
alter table kept owner to trap_073_owner;
alter table kept owner to current_user;
drop owned by trap_073_owner cascade;
insert into kept values (2);
drop role trap_073_owner;

-- trap test_trap_074_extension_dropped
-- needs exists (select from pg_available_extensions where name in ('citext', 'vector'))
do $$ begin execute 'create extension ' || (select min(name) from pg_available_extensions where name in ('citext', 'vector')); end $$;
do $$ begin execute 'create table t (id int primary key, e ' || (select extname from pg_extension where extname in ('citext', 'vector')) || ', v text)'; end $$;
insert into t values (1, '[1,2]', 'x');
-- steps
insert into t values (2, '[3,4]', 'y');
do $$ begin execute 'drop extension ' || (select extname from pg_extension where extname in ('citext', 'vector')) || ' cascade'; end $$;
insert into t values (3, 'z');
update t set v = 'w' where id = 1;

-- trap test_trap_077_enum_value_added
create type mood as enum ('a', 'b');
create table t (id int primary key, m mood);
insert into t values (1, 'a');
-- steps
alter type mood add value 'c' before 'b';
insert into t values (2, 'c');

-- trap test_trap_077_enum_value_renamed
create type mood as enum ('a', 'b');
create table t (id int primary key, m mood);
insert into t values (1, 'a');
-- steps
alter type mood rename value 'a' to 'x';
insert into t values (2, 'x');

-- trap test_trap_078_type_renamed
create type mood as enum ('a', 'b');
create type pair as (x int, y int);
create domain dom as text;
create table t (id int primary key, m mood, p pair, d dom);
insert into t values (1, 'a', '(1,2)', 'x');
-- steps
alter type mood rename to feeling;
alter type pair rename to couple;
alter domain dom rename to other;
insert into t values (2, 'b', '(3,4)', 'y');

-- trap test_trap_069_generated_column_added
-- stale many: rewritten by
-- stale coerced: rewritten by
create table t (id int primary key, a int);
insert into t values (1, 1);
create table many (id int primary key, a int);
insert into many values (1, 1);
create table coerced (id int primary key, o oid);
insert into coerced values (1, 4294967295);
-- steps
alter table t add column g int generated always as (a * 2) stored;
insert into t (id, a) values (2, 2);
update t set a = 3 where id = 1;
-- drain
alter table t add column h int generated always as (a * 3) stored, alter id type bigint, add column n int;
insert into t (id, a, n) values (3, 3, 3);
do $$ begin alter table many add column g int generated always as (a * 2) stored; end $$;
alter table coerced add column g int generated always as (id * 2) stored, alter o type int;

-- trap test_trap_069_virtual_column_added
-- needs current_setting('server_version_num')::int >= 180000
create table t (id int primary key, a int);
insert into t values (1, 1);
-- steps
alter table t add column g int generated always as (a * 2) virtual;
insert into t (id, a) values (2, 2);

-- trap test_trap_069_generated_columns_that_are_published
-- needs current_setting('server_version_num')::int >= 180000
-- alone
-- stale t: column g
create table t (id int primary key, a int);
insert into t values (1, 1);
create publication cdc for table t with (publish_generated_columns = stored);
-- steps
alter table t add column g int generated always as (a * 2) stored;
insert into t (id, a) values (2, 2);

-- trap test_trap_069_set_expression_of_a_published_column
-- needs current_setting('server_version_num')::int >= 180000
-- alone
-- stale t: rewritten by ALTER TABLE
create table t (id int primary key, a int, g int generated always as (a + 1) stored);
insert into t (id, a) values (1, 1);
create publication cdc for table t with (publish_generated_columns = stored);
-- steps
alter table t alter g set expression as (a * 10);
insert into t (id, a) values (2, 2);

-- trap test_trap_069_identity_of_a_column
create table t (id int primary key, n int not null);
insert into t values (1, 1);
-- steps
alter table t alter n add generated by default as identity (start with 10);
insert into t (id) values (2);
alter table t alter n set generated always;
alter table t alter n restart with 20;
insert into t (id) values (3);
alter table t alter n drop identity;
insert into t values (4, 4);

-- trap test_trap_088_sequence_owned
create table t (id int primary key, n int);
create sequence s;
insert into t values (1, 1);
-- steps
alter sequence s owned by t.n;
alter table t alter n set default nextval('s');
insert into t (id) values (2);
alter sequence s owned by none;
alter table t alter n drop default;
drop sequence s;

-- trap test_trap_088_comments
create type mood as enum ('a');
create table t (id int primary key, v text, constraint positive check (id > 0));
insert into t values (1, 'x');
-- steps
comment on table t is 'a table';
comment on column t.v is 'a column';
comment on constraint positive on t is 'a constraint';
comment on type mood is 'a type';
comment on schema trap_088_comments is 'a schema';
insert into t values (2, 'y');

-- trap test_trap_088_constraint_validated
create table p (id int primary key);
create table t (id int primary key, p int, v text);
insert into p values (1);
insert into t values (1, 1, 'x');
-- steps
alter table t add constraint positive check (id > 0) not valid;
alter table t validate constraint positive;
alter table t add constraint fk foreign key (p) references p not valid;
alter table t validate constraint fk;
alter table t alter constraint fk deferrable initially deferred;
alter table t rename constraint fk to fk2;
insert into t values (2, 1, 'y');
alter table t drop constraint positive, drop constraint fk2;

-- trap test_trap_088_not_null_and_default
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter table t alter v set not null, alter v set default 'd';
insert into t (id) values (2);
alter table t alter v drop not null, alter v drop default;
insert into t (id) values (3);

-- trap test_trap_088_collation
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter table t alter v type text collate "C";
insert into t values (2, 'y');

-- trap test_trap_088_what_stands_beside_a_table
create table t (id int primary key, v text);
create function touch() returns trigger language plpgsql as $$ begin new.v := new.v || '!'; return new; end $$;
insert into t values (1, 'x');
-- steps
create index on t (v);
create trigger touch before update on t for each row execute function touch();
create rule quiet as on delete to t where old.id = 1 do instead nothing;
create policy mine on t using (true);
alter table t enable row level security, force row level security;
create statistics st on id, v from t;
create view w as select * from t;
grant select on t to public;
alter table t set (fillfactor = 70), alter v set statistics 10, alter v set storage external, cluster on t_pkey;
update t set v = 'y';
delete from t;
drop rule quiet on t;
drop trigger touch on t;
drop policy mine on t;
revoke select on t from public;
drop view w;

-- trap test_trap_071_commands_without_an_event
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
vacuum full t;
cluster t using t_pkey;
analyze t;
reindex table t;
begin;
lock table t;
commit;
checkpoint;
insert into t values (2, 'y');

-- trap test_trap_068_other_rewrites
-- stale a: rewritten by
-- stale b: rewritten by
-- stale c: rewritten by
-- stale d: rewritten by
-- stale e: rewritten by
create table a (id int primary key, v text);
create table b (id int primary key, v text);
create table c (id int primary key, v timestamptz);
create table d (id int primary key, v int[]);
create table e (id int primary key, v bit(4));
insert into a values (1, 'x');
insert into b values (1, 'abc');
insert into c values (1, '2026-01-02 03:04:05+00');
insert into d values (1, '{1,2}');
insert into e values (1, '1010');
-- steps
alter table a alter v type char(5);
alter table b alter v type varchar(2) using left(v, 2);
set timezone = 'Asia/Tokyo';
alter table c alter v type timestamp;
reset timezone;
alter table d alter v type text[];
alter table e alter v type bit(8) using v::bit(8);
insert into a values (2, 'y');

-- trap test_trap_051_identity_nothing
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter table t replica identity nothing;
insert into t values (2, 'y');
! update t set v = 'z';
-- drain
alter table t replica identity full;
update t set v = 'z' where id = 1;

-- trap test_trap_086_unlogged
-- stale t: it is unlogged
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter table t set unlogged;
insert into t values (2, 'lost');

-- trap test_trap_076_catalog_edited_by_a_superuser
-- stale t: without a captured event
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
set allow_system_table_mods = on;
update pg_attribute set attname = 'w' where attrelid = 't'::regclass and attnum = 2;
reset allow_system_table_mods;
insert into t values (2, 'y');

-- trap test_trap_076_event_trigger_disabled
-- alone
-- stale t: without a captured event|altered
-- stale u: altered
create table t (id int primary key, v text);
create table u (id int primary key);
insert into t values (1, 'x');
-- steps
alter event trigger _cdc_0_command disable;
alter table t add column c int default 5;
alter event trigger _cdc_0_command enable always;
insert into t values (2, 'y', 6);
insert into u values (1);

-- trap test_trap_076_event_trigger_left_disabled
-- alone
-- stale t: DDL capture
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter event trigger _cdc_0_rewrite disable;
insert into t values (2, 'y');

-- trap test_trap_089_paused_and_resumed
-- alone
-- stale t: DDL capture was paused
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
select cdc.pause();
alter table t alter v type text using upper(v);
insert into t values (2, 'y');
-- drain
select cdc.resume();
insert into t values (3, 'z');

-- trap test_trap_089_left_paused
-- alone
-- stale t: DDL capture
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
select cdc.pause();
insert into t values (2, 'y');

-- trap test_trap_089_switched_off_in_a_session
-- alone
-- stale t: DDL capture was paused
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
set cdc.capture = off;
alter table t add column c int default 5;
reset cdc.capture;
insert into t values (2, 'y', 6);

-- trap test_trap_092_table_removed
-- group tables
-- stale t: left the publication
create table t (id int primary key, v text);
create table u (id int primary key);
insert into t values (1, 'x');
-- steps
alter publication cdc drop table t;
insert into t values (2, 'unheard');
insert into u values (1);

-- trap test_trap_092_table_removed_and_added_again
-- group tables
-- stale t: the publication
create table t (id int primary key, v text);
create table u (id int primary key);
insert into t values (1, 'x');
-- steps
alter publication cdc drop table t;
insert into t values (2, 'unheard');
alter publication cdc add table t;
insert into t values (3, 'heard');

-- trap test_trap_092_table_added
-- group tables
-- stale n: no complete snapshot
create table t (id int primary key);
-- steps
create table n (id int primary key, v text);
insert into n values (1, 'unheard');
-- drain
alter publication cdc add table n;
insert into n values (2, 'heard');

-- trap test_trap_092_publish_list_cut
-- alone
-- stale t: sends insert only
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter publication cdc set (publish = 'insert');
update t set v = 'unheard';

-- trap test_trap_092_publish_list_cut_and_put_back
-- alone
-- stale t: the publication now sends
create table t (id int primary key, v text);
insert into t values (1, 'x');
-- steps
alter publication cdc set (publish = 'insert');
update t set v = 'unheard';
alter publication cdc set (publish = 'insert, update, delete, truncate');
update t set v = 'heard';

-- trap test_trap_093_column_list_changed
-- alone
-- stale t: column w: joined the publication
create table t (id int primary key, v text, w text);
insert into t values (1, 'x', 's');
create publication cdc for table t (id, v);
-- steps
insert into t values (2, 'y', 's');
-- drain
alter publication cdc set table t (id, w);
insert into t values (3, 'z', 'shown');

-- trap test_trap_094_row_filter_changed
-- alone
-- stale t: row filter of the publication changed
create table t (id int primary key, n int);
alter table t replica identity full;
insert into t values (1, 1), (2, 20), (3, 30);
create publication cdc for table t where (n > 10);
-- steps
update t set n = 100 where id = 1;
update t set n = 5 where id = 2;
-- drain
alter publication cdc set table t where (n > 50);
insert into t values (4, 40), (5, 60);

-- trap test_trap_095_root_altered
-- group roots
-- stale q: column c: added with a default
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table q (id int primary key) partition by range (id);
create table q1 partition of q for values from (0) to (10);
insert into r values (1, 'a');
insert into q values (1);
-- steps
alter table r add column c int;
create table r2 partition of r for values from (10) to (20);
insert into r values (11, 'b', 1);
-- drain
update r set id = 12 where id = 1;
alter table r rename v to w;
alter table r drop column c;
alter table r1 rename to r_first;
insert into r values (2, 'd');
alter table q add column c int default random() * 10;
truncate r;
insert into r values (3, 'e');

-- trap test_trap_096_partition_attached_to_a_root
-- group roots
-- stale r: attached or detached
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table alone (id int primary key, v text);
insert into r values (1, 'a');
insert into alone values (11, 'b');
-- steps
insert into r values (2, 'c');
look;
alter table r attach partition alone for values from (10) to (20);
insert into r values (12, 'd');

-- trap test_trap_096_partition_detached_from_a_root
-- group roots
-- stale r2: no complete snapshot
-- stale r: attached or detached
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
insert into r values (2, 'c');
look;
alter table r detach partition r2;
insert into r values (3, 'd');

-- trap test_trap_096_partition_detached_concurrently
-- group roots
-- stale r2: no complete snapshot
-- stale r: detached
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
alter table r detach partition r2 concurrently;
insert into r values (3, 'd');

-- trap test_trap_096_detach_cancelled_then_finalized
-- group roots
-- stale r2: no complete snapshot
-- stale r: detached
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
b: begin;
b: select from r;
set statement_timeout = '300ms';
! alter table r detach partition r2 concurrently;
reset statement_timeout;
b: commit;
insert into r values (2, 'c');
look;
alter table r detach partition r2 finalize;
insert into r values (3, 'd');

-- trap test_trap_096_detach_cancelled_then_dropped
-- group roots
-- stale r: dropped
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
b: begin;
b: select from r;
set statement_timeout = '300ms';
! alter table r detach partition r2 concurrently;
reset statement_timeout;
b: commit;
insert into r values (2, 'c');
look;
drop table r2;
insert into r values (3, 'd');

-- trap test_trap_096_partition_dropped
-- group roots
-- stale r: r2 was dropped
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
insert into r values (2, 'c');
drop table r2;
insert into r values (3, 'd');

-- trap test_trap_097_partition_truncated
-- group roots
-- stale r: r2 was truncated
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
create table r2 partition of r for values from (10) to (20);
insert into r values (1, 'a'), (11, 'b');
-- steps
insert into r values (12, 'c');
look;
truncate r2;
insert into r values (13, 'd');

-- trap test_trap_095_partitions_sent_as_their_root_from_now_on
-- alone
-- stale r: no complete snapshot
create table r (id int primary key, v text) partition by range (id);
create table r1 partition of r for values from (0) to (10);
insert into r values (1, 'a');
create publication cdc for tables in schema trap_095_partitions_sent_as_their_root_from_now_on;
-- steps
insert into r values (2, 'b');
-- drain
alter publication cdc set (publish_via_partition_root = true);
insert into r values (3, 'c');
