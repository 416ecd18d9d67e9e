-- A digest of the functions that `cdc init` has installed. Drains and `cdc doctor` use it to detect that a capture
-- function was replaced. A replaced function would not record its own replacement.

create or replace function cdc.fingerprint()
returns bytea
language plpgsql
stable
set search_path = pg_catalog, pg_temp
as $function$
begin
  return (
    -- The row version is included: a function that was replaced and restored has a new one.
    select convert_to(
      jsonb_object_agg(
        p.oid::regprocedure,
        encode(sha256(convert_to(pg_get_functiondef(p.oid) || p.proowner || p.xmin, 'UTF8')), 'hex')
      )::text,
      'UTF8'
    )
    from pg_proc as p
    where p.pronamespace = 'cdc'::regnamespace
      and p.proname in (
        'altered_publication', 'beacon', 'capture_command', 'capture_drop', 'capture_failed', 'capture_rewrite',
        'capture_truncate', 'emit', 'guard', 'guard_new', 'guarding', 'guards_of', 'is_gone', 'is_own', 'is_signed',
        'keep_publications',
        'key_index', 'let_read', 'log_doubted', 'log_emptied', 'log_failed', 'log_is_read', 'log_lacks', 'log_order',
        'log_part', 'log_present', 'log_replicated', 'log_row', 'log_rows', 'log_table', 'log_truncate', 'naming_types', 'of_this_transaction', 'own',
        'own_reader', 'partitions_below', 'paused', 'pin', 'places', 'present', 'publish_new', 'publishable',
        'published_by', 'reader', 'run_uncaptured', 'sent_by', 'sign', 'strays', 'table_snapshots', 'touched', 'type_details',
        'write_message'
      )
  );
end
$function$;
revoke all on function cdc.fingerprint() from public;
