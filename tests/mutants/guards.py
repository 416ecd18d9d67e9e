"""Guards of the code, each with what is left when it is removed and the test that must then fail."""

from __future__ import annotations

from tests.mutants.guards_of_source import GUARDS_OF_SOURCE, Guard, never

_PLAN = "tests/unit/test_decode_plan.py::"
_STREAM = "tests/postgres/test_streaming.py::"
_STATUS = "tests/postgres/test_status.py::"
_REWRITES = "tests/postgres/test_trap_rewrites.py::"
_ENDS = "tests/unit/test_command_ends.py::"
_ALERTS, _NIGHT = "toolkit/ops/alerts.py", "tests/postgres/test_night.py"
_SAYS = f"{_STATUS}test_what_a_check_says_status_and_doctor_say_too"
_DECODE = "tests/unit/test_decode_plan.py"
_SAME, _SOURCE = "toolkit/capture/same_history.py", "tests/postgres/test_traps_source.py"
_EVENT_OF_BATCH = "event.batch_id != record.batch_id or event.kind == Kind.BATCH"

GUARDS = (
    *GUARDS_OF_SOURCE,
    Guard(
        "local tasks bounded by the heap",
        "toolkit/lake/session.py",
        "min(os.cpu_count() or 1, room)",
        "os.cpu_count() or 1",
        "tests/unit/test_values.py::test_local_mode_runs_no_more_tasks_than_the_heap_has_room_for",
    ),
    never(
        "the hash of a jar",
        "toolkit/lake/jars.py",
        "digest != PINNED[name]",
        "tests/unit/test_jars.py::test_a_jar_with_another_hash_is_refused_by_name",
    ),
    Guard(
        "jars compared before the session",
        "toolkit/lake/session.py",
        'jars.require_pinned(filter(None, resolved.split(",")), settings)',
        "pass",
        "tests/spark/test_session.py::test_a_jar_with_another_hash_starts_no_session",
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
    never(
        "COMMIT against BEGIN",
        "toolkit/decode/stream.py",
        "(told != commit_lsns).any()",
        f"{_PLAN}test_a_commit_must_be_the_one_its_begin_announced",
    ),
    never(
        "transactions in commit order",
        "toolkit/decode/stream.py",
        "(np.diff(commit_lsns) <= 0).any()",
        f"{_PLAN}test_transactions_out_of_commit_order_are_refused",
    ),
    never(
        "known types of messages",
        "toolkit/decode/stream.py",
        "not known.all()",
        f"{_PLAN}test_an_unknown_type_byte_is_named",
    ),
    never(
        "rows of the transaction that they are in",
        "toolkit/decode/stream.py",
        "(wanted != found).any()",
        f"{_PLAN}test_rows_of_another_transaction_are_refused",
    ),
    Guard(
        "one transaction too large is streamed",
        "toolkit/capture/slot_drain.py",
        "            if size > 1:\n",
        "            if True:\n",
        f"{_STREAM}test_one_transaction_too_large_for_the_servers_temp_files_is_streamed",
    ),
    Guard(
        "an observation waits for the flush",
        "toolkit/capture/drift.py",
        "return replace(seen, upto=slot.wait_flush(conn))",
        "return replace(seen, upto=slot.flush_lsn(conn))",
        "tests/postgres/test_guards.py::test_an_observation_waits_until_what_it_shows_is_flushed",
    ),
    never(
        "no copy above the log",
        "toolkit/capture/copy.py",
        "last.complete_to < cut.lsn",
        "tests/postgres/test_snapshot_log.py",
    ),
    never(
        "no slot ahead of the log",
        "toolkit/capture/same_history.py",
        "confirmed is not None and confirmed > last.complete_to",
        "tests/postgres/test_stages.py",
    ),
    Guard(
        "BEGIN and COMMIT in turn",
        "toolkit/decode/stream.py",
        "    if wrong.any():\n        index = int(edges",
        "    if False:\n        index = int(edges",
        _DECODE,
    ),
    never("a stream ends with a COMMIT", "toolkit/decode/stream.py", "len(begins) != len(commits)", _DECODE),
    never("changes stand in transactions", "toolkit/decode/stream.py", "stray.any()", _DECODE),
    never("a COMMIT at the time of its BEGIN", "toolkit/decode/stream.py", "unlike.any()", _DECODE),
    never("the signature", "toolkit/decode/ddl.py", "not hmac.compare_digest(signature, wanted)", _DECODE),
    never("a message once", "toolkit/decode/ddl.py", "signature in self._seen", _DECODE),
    never("messages of this system", "toolkit/decode/ddl.py", 'str(data.get("system")) != self.system_id', _DECODE),
    never("messages of this transaction", "toolkit/decode/ddl.py", 'int(data.get("xid") or 0) != self.xid', _DECODE),
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
    never("WAL that reaches the ledger", _SAME, "flushed < max(last.complete_to, last.beacon_lsn or 0)", _SOURCE),
    never("the beacon", _SAME, "not peek.has_message(conn, config, last.beacon, upto=last.beacon_lsn)", _SOURCE),
    never("the same server and database", _SAME, "was != now", _SOURCE),
    never(
        "the same publication",
        _SAME,
        "found != oid",
        "tests/postgres/test_trap_publications.py::test_trap_091_a_publication_dropped_and_made_again_is_another_history",
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
    never(
        "a part of a table that was never copied",
        "toolkit/capture/copy.py",
        "not_copied(ledger, [table])",
        "tests/postgres/test_stages.py::test_a_part_of_a_table_without_a_complete_copy_is_refused",
    ),
    never("events of the batch", "toolkit/rawlog/batch.py", _EVENT_OF_BATCH, "tests/spark/test_ledger.py"),
    never("the format of the log", "toolkit/rawlog/batch.py", "self.format != FORMAT", "tests/unit/test_values.py"),
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
    never("rows without what they reference in status", _ALERTS, "table.orphans", _SAYS),
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
    never(
        "no table in status",
        _ALERTS,
        "none",
        "tests/postgres/test_status.py::test_without_any_table_status_is_red_as_the_check_is",
    ),
    never(
        "failed commands in status",
        _ALERTS,
        "run.exit_code",
        "tests/postgres/test_status.py::test_a_failed_command_is_remembered_until_it_succeeds",
    ),
    never("WAL that grows", _ALERTS, "kept > limits.wal_mb", _NIGHT),
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
        "    JdbcCatalog(config).force(EVENTS, landed)\n",
        "",
        "tests/spark/test_staging.py::test_trap_012_a_commit_is_on_the_disk_when_it_returns",
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
    Guard(
        "files are on the disk before the catalog names them",
        "toolkit/lake/jdbc.py",
        "        durable.sync_table(self._config, written, added)\n",
        "",
        "tests/postgres/test_durable.py::test_trap_012_under_strace_files_are_forced_then_named_then_forgotten",
    ),
    Guard(
        "a commit of a killed run is forced before the slot moves over it",
        "toolkit/capture/slot_drain.py",
        "            log.force(ledger.snapshot_id())",
        "            pass",
        "tests/postgres/test_durable.py::"
        "test_trap_012_a_commit_that_was_named_and_not_forced_is_forced_before_the_slot_moves",
    ),
    Guard(
        "compacted files are on the disk before old ones go",
        "toolkit/lake/upkeep.py",
        "    _forced(config, table, native)\n    if native",
        "    native.refresh()\n    if native",
        "tests/spark/test_maintain.py::test_trap_012_what_compaction_made_is_on_the_disk_before_the_old_files_go",
    ),
    Guard(
        "what is published moves only forward",
        "toolkit/quality/published.py",
        "        if report.lsn is not None and _newer(known, generation, report.lsn):",
        "        if False:",
        "tests/spark/test_publish.py::test_an_older_check_that_ends_late_moves_nothing_back",
    ),
    Guard(
        "proofs are written on what was read",
        "toolkit/lake/check_results.py",
        "    if (None if current is None else current.snapshot_id) != base:",
        "    if False:",
        "tests/spark/test_publish.py::test_an_older_check_that_ends_late_moves_nothing_back",
    ),
)
