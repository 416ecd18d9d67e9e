"""Guards of the code, each with what is left when it is removed and the test that must then fail."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Guard:
    """A rule at one place: `text` stands once in `file`, `without` takes its place in the mutant."""

    name: str
    file: str
    text: str
    without: str
    test: str


_G = "tests/postgres/test_guards.py::"
_PINS = f"{_G}test_functions_pin_the_settings_that_they_depend_on"
_PUBLIC = f"{_G}test_public_has_no_right_in_the_schema"
_CONNECTION = "tests/postgres/test_connection.py::test_104_settings_hold_against_role_and_database"
_STREAM = "tests/postgres/test_streaming.py::"
_PLAN = "tests/unit/test_decode_plan.py::"
_RIGHTS = "tests/postgres/test_rights.py::"
_ENDS = "tests/unit/test_command_ends.py::"
_ALERTS, _NIGHT = "toolkit/ops/alerts.py", "tests/postgres/test_night.py"
_SAYS = "tests/postgres/test_status.py::test_what_a_check_says_status_and_doctor_say_too"
_DECODE = "tests/unit/test_decode_plan.py"
_STATUS = "tests/postgres/test_status.py::"
_REWRITES = "tests/postgres/test_trap_rewrites.py::"
_SAME, _SOURCE = "toolkit/capture/same_history.py", "tests/postgres/test_traps_source.py"
_EVENT_OF_BATCH = "event.batch_id != record.batch_id or event.kind == Kind.BATCH"
_CAPTURE, _LOG = "sql/install/30_capture.sql", "sql/changelog/10_log.sql"
_PATH = "security definer\nset search_path = pg_catalog, pg_temp"


def _definer(file: str, head: str) -> Guard:
    text = f"function cdc.{head}\nlanguage plpgsql\n{_PATH}"
    return Guard(f"pg_temp last in {head.partition('(')[0]}", file, text, text.removesuffix(", pg_temp"), _PINS)


def _revoked(file: str, what: str) -> Guard:
    return Guard(f"no right of PUBLIC on {what}", file, f"revoke all on {what} from public;\n", "", _PUBLIC)


def _pinned(name: str, value: str) -> Guard:
    return Guard(f"pinned {name}", "toolkit/source/connection.py", f'    ("{name}", "{value}"),', "", _CONNECTION)


def _never(name: str, file: str, condition: str, test: str) -> Guard:
    """A condition that refuses, made one that never does."""
    return Guard(name, file, f"if {condition}:", "if False:", test)


GUARDS = (
    _never(
        "another version's capture",
        "toolkit/source/preflight.py",
        "guard.of_another_version(conn)",
        "tests/postgres/test_upgrade.py::test_an_older_installation_is_named_until_init_replaces_it",
    ),
    Guard(
        "local tasks bounded by the heap",
        "toolkit/lake/session.py",
        "min(os.cpu_count() or 1, room)",
        "os.cpu_count() or 1",
        "tests/unit/test_values.py::test_local_mode_runs_no_more_tasks_than_the_heap_has_room_for",
    ),
    _definer(_CAPTURE, "capture_command()\nreturns event_trigger"),
    _definer(_CAPTURE, "capture_drop()\nreturns event_trigger"),
    _definer(_CAPTURE, "capture_rewrite()\nreturns event_trigger"),
    _definer(_LOG, "log_row()\nreturns trigger"),
    _definer(_LOG, "log_rows()\nreturns trigger"),
    *(
        _revoked(_CAPTURE, f"function cdc.{name}")
        for name in ("sign(bytea)", "emit(text, jsonb)", "own(jsonb)", "capture_command()")
    ),
    *(
        _revoked(_LOG, f"function cdc.{name}")
        for name in ("log_row()", "present(oid, text, anyarray, tid)", "own_reader(oid)", "purge_log(pg_snapshot)")
    ),
    _revoked("sql/install/45_seal.sql", "function cdc.fingerprint()"),
    Guard(
        "row_security off in log_row",
        _LOG,
        "set row_security = off\nset lock_timeout = 0\nas $function$\ndeclare\n  latest",
        "set lock_timeout = 0\nas $function$\ndeclare\n  latest",
        _PINS,
    ),
    Guard(
        "lock_timeout of emit",
        _CAPTURE,
        "set lock_timeout = 0\nas $function$\ndeclare\n  content",
        "as $function$\ndeclare\n  content",
        _PINS,
    ),
    _pinned("DateStyle", "ISO"),
    _pinned("IntervalStyle", "postgres"),
    Guard(
        "pinned constraint_exclusion",
        "toolkit/source/connection.py",
        '    ("constraint_exclusion", "off"),  # with it, planning runs functions of CHECK constraints\n',
        "",
        f"{_RIGHTS}test_constraints_are_not_planned_with",
    ),
    _pinned("TimeZone", "UTC"),
    _pinned("bytea_output", "hex"),
    _pinned("extra_float_digits", "3"),
    _pinned("lc_monetary", "C"),
    _pinned("search_path", ""),
    _pinned("xmlbinary", "base64"),
    _pinned("quote_all_identifiers", "off"),
    _pinned("default_transaction_read_only", "off"),
    _pinned("default_transaction_isolation", "read committed"),
    _pinned("statement_timeout", "0"),
    _pinned("lock_timeout", "0"),
    _pinned("idle_in_transaction_session_timeout", "0"),
    _pinned("idle_session_timeout", "0"),
    _pinned("standard_conforming_strings", "on"),
    Guard(
        "transaction_timeout",
        "toolkit/source/connection.py",
        '        connection.execute("set transaction_timeout = 0")',
        "        pass",
        f"{_G}test_a_transaction_timeout_of_the_database_does_not_end_a_drain",
    ),
    Guard(
        "unlogged tables of others' publications are listed",
        "toolkit/source/catalog.py",
        "if r.table and any(p.holds(r) for p in held)",
        "if r.capturable and any(p.holds(r) for p in held)",
        f"{_STATUS}test_what_a_publication_of_others_for_all_tables_does_not_send_is_listed",
    ),
    Guard(
        "a root that was captured itself stays stale",
        "toolkit/rawlog/states.py",
        "silent = _unsent if relid in captured else left_out",
        "silent = left_out",
        f"{_STATUS}test_what_a_publication_of_others_for_all_tables_does_not_send_is_listed",
    ),
    Guard(
        "every leaf of a root is published",
        "toolkit/rawlog/states.py",
        "return all(part is not None and",
        "return any(part is not None and",
        f"{_STATUS}test_a_partitioned_root_under_the_name_of_a_captured_table_is_not_stale",
    ),
    Guard(
        "a rewrite is exact only of an empty table",
        _CAPTURE,
        "and pg_relation_size(c.oid, 'main') = 0",
        "",
        f"{_REWRITES}test_trap_068_a_rewrite_of_a_table_that_may_hold_rows_is_stale",
    ),
    Guard(
        "rows after the look at a rewritten table",
        "toolkit/decode/transaction.py",
        "not rewrite.empty or self.planner.has_rows(tables[0].relid, rewrite.index, index)",
        "not rewrite.empty",
        f"{_REWRITES}test_trap_068_a_trigger_that_writes_after_the_look_at_a_table_makes_it_stale",
    ),
    Guard(
        "no partition of a rewritten root has a row",
        "toolkit/decode/rewrite.py",
        "self.empty and other.empty",
        "other.empty",
        f"{_PLAN}test_a_rewrite_of_a_root_is_exact_if_no_partition_has_a_row",
    ),
    _never(
        "an advance that stops short",
        "toolkit/source/slot.py",
        "reached < lsn",
        f"{_G}test_an_advance_that_stops_short_is_an_error",
    ),
    _never(
        "COMMIT against BEGIN",
        "toolkit/decode/stream.py",
        "(told != commit_lsns).any()",
        f"{_PLAN}test_a_commit_must_be_the_one_its_begin_announced",
    ),
    _never(
        "transactions in commit order",
        "toolkit/decode/stream.py",
        "(np.diff(commit_lsns) <= 0).any()",
        f"{_PLAN}test_transactions_out_of_commit_order_are_refused",
    ),
    _never(
        "known types of messages",
        "toolkit/decode/stream.py",
        "not known.all()",
        f"{_PLAN}test_an_unknown_type_byte_is_named",
    ),
    _never(
        "rows of the transaction that they are in",
        "toolkit/decode/stream.py",
        "(wanted != found).any()",
        f"{_PLAN}test_rows_of_another_transaction_are_refused",
    ),
    Guard(
        "a stream acknowledges nothing",
        "toolkit/source/streaming.py",
        '_STATUS.pack(b"r", written, 0, 0, 0, ask)',
        '_STATUS.pack(b"r", written, written, written, 0, ask)',
        f"{_STREAM}test_a_stream_that_has_to_answer_does_not_move_the_slot",
    ),
    Guard(
        "a stream leaves the slot free",
        "toolkit/source/streaming.py",
        "            _end(conn, config.source.slot, pid)\n",
        "            pass\n",
        f"{_STREAM}test_every_prefix_of_a_stream_is_that_of_the_peek",
    ),
    Guard(
        "foreign messages of a stream are hashed",
        "toolkit/source/streaming.py",
        '_own(message, key) if message[:1] == b"M" else message',
        "message",
        f"{_STREAM}test_a_stream_gives_the_bytes_of_a_peek",
    ),
    Guard(
        "one transaction too large is streamed",
        "toolkit/capture/slot_drain.py",
        "            if size > 1:\n",
        "            if True:\n",
        f"{_STREAM}test_one_transaction_too_large_for_the_servers_temp_files_is_streamed",
    ),
    _never(
        "the trailer of COPY",
        "toolkit/source/peek.py",
        "not ended",
        f"{_G}test_a_copy_without_its_trailer_is_an_error",
    ),
    Guard(
        "purge only of a log that is read",
        "toolkit/source/change_log.py",
        '"select cdc.purge_log(%s::pg_catalog.pg_snapshot) where cdc.log_is_read()"',
        '"select cdc.purge_log(%s::pg_catalog.pg_snapshot)"',
        f"{_G}test_a_log_that_is_not_whole_is_not_purged",
    ),
    Guard(
        "purge's second look under lock",
        _LOG,
        ") using drained into rows_left; -- with the lock nobody else's row can be under way",
        ") using drained;",
        f"{_G}test_a_row_that_comes_while_a_purge_looks_is_kept",
    ),
    Guard(
        "an observation waits for the flush",
        "toolkit/capture/drift.py",
        "return replace(seen, upto=slot.wait_flush(conn))",
        "return replace(seen, upto=slot.flush_lsn(conn))",
        f"{_G}test_an_observation_waits_until_what_it_shows_is_flushed",
    ),
    Guard(
        "settings of roles in the state of capture",
        "sql/introspect/capture.sql",
        "'^(event_triggers|cdc.capture)='",
        "'^nothing='",
        f"{_G}test_a_setting_of_the_database_that_switches_capture_off_changes_its_state",
    ),
    Guard(
        "no tick of a standby",
        "toolkit/source/ticks.py",
        "        slot.require_primary(holder)\n",
        "",
        "tests/postgres/test_promotion.py::test_a_tick_is_of_one_server_and_that_is_the_primary",
    ),
    _never(
        "no copy above the log",
        "toolkit/capture/copy.py",
        "last.complete_to < cut.lsn",
        "tests/postgres/test_snapshot_log.py",
    ),
    _never(
        "no slot ahead of the log",
        "toolkit/capture/same_history.py",
        "confirmed is not None and confirmed > last.complete_to",
        "tests/postgres/test_stages.py",
    ),
    Guard(
        "only rows of this transaction are late",
        _LOG,
        "late := old.xmin in (select cdc.own_xids());",
        "late := true;",
        "tests/postgres/test_xids.py::test_an_old_row_that_is_deleted_is_not_taken_for_one_of_its_transaction",
    ),
    Guard(
        "tables of the altered publication only",
        _CAPTURE,
        "  if publications = '{}' then\n    return '{}';\n  end if;\n",
        "  if true then return cdc.publishable(); end if;\n",
        "tests/postgres/test_capture.py::test_a_publication_event_reads_the_tables_that_it_concerns",
    ),
    Guard(
        "BEGIN and COMMIT in turn",
        "toolkit/decode/stream.py",
        "    if wrong.any():\n        index = int(edges",
        "    if False:\n        index = int(edges",
        _DECODE,
    ),
    _never("a stream ends with a COMMIT", "toolkit/decode/stream.py", "len(begins) != len(commits)", _DECODE),
    _never("changes stand in transactions", "toolkit/decode/stream.py", "stray.any()", _DECODE),
    _never("a COMMIT at the time of its BEGIN", "toolkit/decode/stream.py", "unlike.any()", _DECODE),
    _never("the signature", "toolkit/decode/ddl.py", "not hmac.compare_digest(signature, wanted)", _DECODE),
    _never("a message once", "toolkit/decode/ddl.py", "signature in self._seen", _DECODE),
    _never("messages of this system", "toolkit/decode/ddl.py", 'str(data.get("system")) != self.system_id', _DECODE),
    _never("messages of this transaction", "toolkit/decode/ddl.py", 'int(data.get("xid") or 0) != self.xid', _DECODE),
    Guard(
        "transactions that run are not seen",
        "toolkit/values/visibility.py",
        "(xid < self.xmax and xid not in self.running)",
        "xid < self.xmax",
        "tests/postgres/test_xids.py::test_a_snapshot_before_the_epoch_shows_no_transaction_after_it",
    ),
    Guard(
        "ids of 64 bits",
        "toolkit/values/visibility.py",
        "return (low - near + _HALF) % _EPOCH - _HALF + near",
        "return low",
        "tests/postgres/test_xids.py::test_a_snapshot_before_the_epoch_shows_no_transaction_after_it",
    ),
    _never("WAL that reaches the ledger", _SAME, "flushed < max(last.complete_to, last.beacon_lsn or 0)", _SOURCE),
    _never("the beacon", _SAME, "not peek.has_message(conn, config, last.beacon, upto=last.beacon_lsn)", _SOURCE),
    _never("the same server and database", _SAME, "was != now", _SOURCE),
    _never(
        "the same publication",
        _SAME,
        "found != oid",
        "tests/postgres/test_trap_publications.py::test_trap_091_a_publication_dropped_and_made_again_is_another_history",
    ),
    _never(
        "a table that is still the one of the snapshot",
        "toolkit/source/row_lines.py",
        "not (same_table and same_files)",
        "tests/postgres/test_parity_reads.py",
    ),
    _never(
        "partitions that are still those of the snapshot",
        "toolkit/source/row_lines.py",
        "not same_parts",
        "tests/postgres/test_parity_reads.py",
    ),
    _never(
        "a file that is still the one of the snapshot",
        "toolkit/source/snapshot_rows.py",
        "same is None or not same[0]",
        "tests/postgres/test_copying.py",
    ),
    Guard(
        "a table is copied by a complete copy only",
        "toolkit/rawlog/states.py",
        "for relid, verdict in verdicts(ledger).items() if verdict.copies)",
        "for relid, verdict in verdicts(ledger).items() if verdict.baselines)",
        "tests/unit/test_states.py",
    ),
    Guard(
        "a check confirms the copy of a part",
        "toolkit/rawlog/states.py",
        "confirmed=first(Covers.CHECK)",
        "confirmed=None",
        "tests/unit/test_states.py",
    ),
    _never(
        "a part of a table that was never copied",
        "toolkit/capture/copy.py",
        "not_copied(ledger, [table])",
        "tests/postgres/test_stages.py::test_a_part_of_a_table_without_a_complete_copy_is_refused",
    ),
    _never("events of the batch", "toolkit/rawlog/batch.py", _EVENT_OF_BATCH, "tests/spark/test_ledger.py"),
    _never("the format of the log", "toolkit/rawlog/batch.py", "self.format != FORMAT", "tests/unit/test_values.py"),
    _never("a LSN of the flushed WAL", "toolkit/source/slot.py", "lsn > flushed", "tests/postgres/test_slot.py"),
    Guard(
        "no cast to an owner's type",
        "toolkit/source/row_lines.py",
        'return "." not in column.base',
        "return True",
        f"{_RIGHTS}test_reading_by_keys_runs_no_code_of_the_owner",
    ),
    _never(
        "no plan with code of other roles",
        "toolkit/source/owners_code.py",
        "found is not None",
        f"{_RIGHTS}test_no_plan_of_a_comparison_runs_code_of_the_owner",
    ),
    Guard(
        "a look before rows are copied",
        "toolkit/source/snapshot_rows.py",
        "owners_code.refuse(conn, piece.relid, table.identifier)",
        "pass",
        f"{_RIGHTS}test_a_table_whose_planning_runs_code_of_its_owner_is_refused_by_name",
    ),
    Guard(
        "a look before rows are compared",
        "toolkit/source/row_lines.py",
        "    owners_code.refuse(conn, table.relid, table.identifier)  # each statement is planned anew\n",
        "",
        f"{_RIGHTS}test_no_plan_of_a_comparison_runs_code_of_the_owner",
    ),
    Guard(
        "images without casts",
        _LOG,
        "was := case when tg_op <> 'INSERT' then format('%s', old) end;",
        "was := case when tg_op <> 'INSERT' then old::text end;",
        f"{_RIGHTS}test_a_cast_to_text_of_the_owner_never_runs_as_the_installer",
    ),
    Guard(
        "the owner's code with the owner's rights",
        _LOG,
        "case when pg_get_userbyid(c.relowner) = current_user then 'cdc.present' else 'cdc.present_' || c.relowner end",
        "'cdc.present'",
        f"{_RIGHTS}test_what_the_planner_runs_of_the_owner_runs_with_the_owners_rights",
    ),
    Guard(
        "settings after the owner's code",
        _LOG,
        "late := cdc.is_gone(tg_relid, new.ctid);\n      perform cdc.pin();",
        "late := cdc.is_gone(tg_relid, new.ctid);",
        f"{_RIGHTS}test_settings_that_the_owner_leaves_behind_do_not_reach_the_triggers",
    ),
    _never(
        "a schema cdc of one's own, at each connection",
        "toolkit/source/connection.py",
        "foreign is not None",
        f"{_RIGHTS}test_a_schema_cdc_of_another_role_is_refused",
    ),
    Guard(
        "a schema cdc of one's own",
        "sql/introspect/foreign_objects.sql",
        "where f.owner not in (select",
        "where false and f.owner not in (select",
        f"{_RIGHTS}test_a_schema_cdc_of_another_role_is_refused",
    ),
    Guard(
        "capture is switched off by the installer only",
        _CAPTURE,
        "      and pg_has_role(\n        session_user,",
        "      and true or false and pg_has_role(\n        session_user,",
        f"{_RIGHTS}test_a_role_without_rights_cannot_switch_capture_off",
    ),
    Guard(
        "row security of the toolkit's tables",
        "sql/install/45_seal.sql",
        "execute format('alter table %s enable row level security', own.name);",
        "null;",
        f"{_RIGHTS}test_members_of_pg_read_all_data_read_no_row",
    ),
    Guard(
        "Ctrl-C before the imports",
        "toolkit/cli/__init__.py",
        "    signal.signal(signal.SIGINT, _stop_at_once)\n",
        "",
        f"{_ENDS}test_ctrl_c_while_a_command_is_imported",
    ),
    Guard(
        "Ctrl-C while Spark is stopped",
        "toolkit/cli/frame.py",
        "            _stop_spark(at_once=True)\n",
        "",
        f"{_ENDS}test_ctrl_c_while_spark_is_stopped",
    ),
    Guard(
        "errors that nobody foresaw are told",
        "toolkit/cli/frame.py",
        "(known or _unexpected(error),)",
        "()",
        f"{_ENDS}test_an_error_that_nobody_foresaw_is_one_line_and_told",
    ),
    _never("rows without what they reference in status", _ALERTS, "table.orphans", _SAYS),
    Guard(
        "the last check in status",
        _ALERTS,
        'table.last_check not in (None, "identical")',
        "False",
        _SAYS,
    ),
    Guard(
        "the age of proofs in status",
        _ALERTS,
        "table.checked_seconds > config.check.fresh_hours * 3600",
        "False",
        _SAYS,
    ),
    _never(
        "no table in status",
        _ALERTS,
        "none",
        "tests/postgres/test_status.py::test_without_any_table_status_is_red_as_the_check_is",
    ),
    _never(
        "failed commands in status",
        _ALERTS,
        "run.exit_code",
        "tests/postgres/test_status.py::test_a_failed_command_is_remembered_until_it_succeeds",
    ),
    _never("WAL that grows", _ALERTS, "kept > limits.wal_mb", _NIGHT),
    Guard(
        "status asks for the signing key",
        "toolkit/capture/slot_drain.py",
        "            catalog.hmac_key(conn)\n",
        "            pass\n",
        _NIGHT,
    ),
    Guard(
        "files of this account only",
        "toolkit/cli/frame.py",
        "umask = os.umask(0o077)",
        "umask = os.umask(0o022)",
        "tests/unit/test_foreign_text.py::test_a_command_writes_files_that_only_this_account_reads",
    ),
    Guard(
        "a late runner is refused",
        "toolkit/lake/staging.py",
        '.option("isolation-level", "serializable")',
        '.option("isolation-level", "snapshot")',
        "tests/spark/test_staging.py::test_a_second_runner_from_the_same_base_fails",
    ),
    Guard(
        "a commit is on the disk",
        "toolkit/lake/staging.py",
        "    durable.sync_commit(config, EVENTS, landed)\n",
        "",
        "tests/spark/test_staging.py::test_trap_012_a_commit_is_on_the_disk_when_it_returns",
    ),
    Guard(
        "two sessions of a tick on one server",
        "toolkit/source/ticks.py",
        '        slot.require_server(other, server, "taking a tick")\n',
        "",
        "tests/postgres/test_promotion.py::test_a_tick_is_of_one_server_and_that_is_the_primary",
    ),
    Guard(
        "only what is proven is published",
        "toolkit/quality/published.py",
        'return result.status == "identical" and result.snapshot_id is not None',
        "return True",
        "tests/spark/test_publish.py::test_a_red_table_stays_and_one_lsn_is_refused_by_its_name",
    ),
    Guard(
        "a view is the toolkit's own",
        "toolkit/lake/published_views.py",
        "    if ours and wanted.items() <= known.items() and not again:",
        "    if wanted.items() <= known.items() and not again:",
        "tests/spark/test_publish.py::test_a_view_that_somebody_replaced_is_put_right",
    ),
)
