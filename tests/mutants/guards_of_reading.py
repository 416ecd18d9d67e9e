"""Guards of what the toolkit reads of messages, checkpoints and small tables, and of what it shows by them."""

from __future__ import annotations

from tests.mutants.guards_of_source import Guard, never

_ROOTS = "tests/postgres/test_roots.py::"
_PLAN = "tests/unit/test_decode_plan.py::"
_MESSAGE, _DECODE = "toolkit/decode/ddl_message.py", "tests/unit/test_decode_plan.py"
_FORM = f"{_PLAN}test_an_unreadable_genuine_message_turns_everything_stale"

_CAPTURE, _ALTERED = "sql/install/30_capture.sql", "tests/postgres/test_altered_publication.py::"
_DESCRIBED = f"{_ALTERED}test_the_tables_are_described_where_the_publication_alone_does_not_say_what_is_sent"

_MANIFEST = "tests/unit/test_direct_append.py::test_the_commit_is_described_as_pyiceberg_describes_it"
_APPEND, _COMMIT = "toolkit/lake/direct_append.py", "toolkit/lake/direct_commit.py"
_OVERTAKEN = (
    "tests/unit/test_direct_append.py::test_of_two_runners_with_one_base_the_second_is_refused",
    "tests/unit/test_direct_append.py::test_a_commit_between_reading_and_swapping_is_a_conflict",
)

GUARDS_OF_READING = (
    never(
        "a table known with another row of the publication",
        "toolkit/decode/transaction.py",
        "altered.stamp_in(known) != altered.was",
        f"{_ALTERED}test_a_table_that_is_known_with_another_row_of_the_publication_is_stale",
    ),
    Guard(
        "what a session states of publications",
        _CAPTURE,
        "t.evtname = '_cdc_before' and",
        "true or",
        f"{_ALTERED}test_what_a_session_states_of_publications_is_not_believed",
    ),
    Guard(
        "what a session states where publications cannot be read",
        _CAPTURE,
        "perform set_config('cdc.publications_before', '', true); -- outside",
        "-- outside",
        f"{_ALTERED}test_what_a_session_states_is_not_believed_where_the_publications_cannot_be_read",
    ),
    Guard(
        "a row filter where no row is sent",
        _CAPTURE,
        "and p.publishes && '{insert,update,delete}'",
        "",
        _DESCRIBED,
    ),
    Guard(
        "a row filter where no row was sent before",
        _CAPTURE,
        "and before -> p.oid::text -> 'publishes' ?| '{insert,update,delete}'",
        "",
        _DESCRIBED,
    ),
    Guard(
        "several publications of a lake",
        _CAPTURE,
        "and jsonb_array_length(convert_from(s.value, 'UTF8')::jsonb) > 1",
        "and false",
        _DESCRIBED,
    ),
    never("the signature", _MESSAGE, "not self.signed(signature, payload)", _DECODE),
    never("a message once", _MESSAGE, "signature in self._seen", _DECODE),
    never("messages of this system", _MESSAGE, 'str(data.get("system")) != self.system_id', _DECODE),
    never(
        "messages of this transaction",
        _MESSAGE,
        'int(data.get("xid") or 0) != self.xid',
        _DECODE,
    ),
    never(
        "a DDL message whose fields are of another type",
        "toolkit/decode/transaction.py",
        "not fits(read, DdlMessage)",
        _FORM,
    ),
    Guard(
        "attnums that no table has",
        "toolkit/decode/transaction.py",
        "fits(table, TableVersion) and all(c.attnum in ATTNUMS for c in table.columns)",
        "fits(table, TableVersion)",
        _FORM,
    ),
    Guard(
        "the newest pause of capture in a checkpoint",
        "toolkit/rawlog/checkpoint.py",
        ", *list(switched)[-1:]]",
        "]",
        "tests/unit/test_checkpoint.py::test_a_pause_of_capture_is_known",
    ),
    Guard(
        "a record that is not closed",
        "toolkit/decode/logged_rows.py",
        "if len(table) != len(records):",
        "if False:",
        "tests/unit/test_decode_changelog.py::test_an_open_quote_takes_no_other_record_along",
    ),
    never(
        "the base of a commit without pyiceberg",
        _COMMIT,
        'read is None or base not in (None, read[1].get("current-snapshot-id"))',
        _OVERTAKEN[0],
    ),
    Guard(
        "a commit without pyiceberg that was overtaken",
        _COMMIT,
        "    if not catalog.swap(name, old, new):\n        return None\n",
        "    catalog.swap(name, old, new)\n",
        _OVERTAKEN[1],
    ),
    Guard(
        "files of a commit without pyiceberg are on the disk before the catalog names them",
        _COMMIT,
        "    durable.sync_files(access, name, made.files, storage.file_properties(access))\n",
        "",
        "tests/unit/test_direct_append.py::test_each_file_is_forced_before_the_catalog_names_it",
    ),
    Guard(
        "bounds of all row groups",
        _APPEND,
        "min(one.min for one in held), max(one.max for one in held)",
        "held[0].min, held[0].max",
        _MANIFEST,
    ),
    never(
        "a row group without bounds",
        _APPEND,
        "len(said) < len(parts)",
        "tests/unit/test_direct_append.py::test_a_file_without_statistics_is_left_to_pyiceberg",
    ),
    Guard(
        "columns whose bounds only pyiceberg writes",
        _APPEND,
        "            or any(kinds[name] not in _TYPES or name not in WITH_STATISTICS for name in bounded)\n",
        "",
        "tests/unit/test_direct_append.py::test_an_unusual_table_is_left_to_pyiceberg",
    ),
    Guard(
        "files of rows in the commit without pyiceberg",
        _APPEND,
        "for place in files]",
        "for place in ()]",
        _MANIFEST,
    ),
    Guard(
        "a file of rows on the disk before the catalog names it",
        _COMMIT,
        "        self.files.append((location, size))\n",
        "",
        "tests/unit/test_direct_append.py::test_each_file_is_forced_before_the_catalog_names_it",
    ),
    Guard(
        "a table whose files are elsewhere",
        "toolkit/lake/table_layout.py",
        "if not any(key in given for key in ELSEWHERE):",
        "if True:",
        "tests/unit/test_direct_append.py::test_files_of_rows_are_where_the_properties_of_the_table_say",
    ),
    Guard(
        "a damaged file of rows",
        "toolkit/lake/storage.py",
        "    except pa.ArrowInvalid as error:",
        "    except ZeroDivisionError as error:",
        "tests/unit/test_direct_append.py::test_a_file_of_rows_that_is_damaged_is_not_committed",
    ),
    Guard(
        "rows in the place of those before",
        "toolkit/lake/direct_rows.py",
        "for entry in self._live(manifest)]",
        "for entry in ()]",
        "tests/unit/test_direct_rows.py::test_a_manifest_says_which_file_was_replaced",
    ),
    Guard(
        "rows beside those before",
        "toolkit/lake/direct_rows.py",
        "(listed, form), kept, properties, removed)",
        "(listed, form), [], properties, removed)",
        "tests/unit/test_direct_rows.py::test_appended_rows_stand_beside_those_before",
    ),
    Guard(
        "rows of an older table snapshot",
        "toolkit/lake/direct_commit.py",
        'base not in (None, read[1].get("current-snapshot-id"))',
        "False",
        "tests/unit/test_direct_rows.py::test_rows_of_an_older_table_snapshot_are_not_replaced",
    ),
    Guard(
        "a check that is overtaken at its commit",
        "toolkit/lake/check_results.py",
        "if direct_rows.write(access, name, rows, {}, replace=True, base=base) is None:",
        "if direct_rows.write(access, name, rows, {}, replace=True, base=base) is False:",
        "tests/unit/test_direct_rows.py::test_rows_of_an_older_table_snapshot_are_not_replaced",
    ),
    never(
        "partitions, or rows of another form, that are written",
        "toolkit/lake/direct_rows.py",
        'self.spec["fields"] or not rows or any({*row} != {*self.ids} for row in rows)',
        "tests/unit/test_direct_rows.py",
    ),
    Guard(
        "a batch that is not judged, even an empty one",
        "dbt_project/models/ops/tables.sql",
        "where kind = 'batch')",
        "where kind not in ('batch', 'message'))",
        "tests/dbt/test_states.py::test_ops_tables_and_history_say_what_the_log_says",
    ),
    never(
        "states that wait for the difference that a check found",
        "toolkit/quality/published.py",
        "any(result.status == CheckStatus.DIFFERENT for result in report.tables)",
        "tests/spark/test_publish.py::test_no_state_counts_between_a_difference_and_the_states_after_it",
    ),
    Guard(
        "a property that pyiceberg follows",
        _COMMIT,
        '            or any(key in metadata.get("properties", {}) for key in _ELSEWHERE)\n',
        "",
        "tests/unit/test_direct_append.py::test_an_unusual_table_is_left_to_pyiceberg",
    ),
    Guard(
        "a stale partition of a root",
        "toolkit/rawlog/states.py",
        "        if stale:\n",
        "        if False:\n",
        f"{_ROOTS}test_a_stale_partition_makes_its_root_stale_by_name",
    ),
    Guard(
        "a partition of a root that is not captured",
        "toolkit/rawlog/states.py",
        "elif root.fault is not None:",
        "elif False:",
        f"{_ROOTS}test_a_partition_that_is_not_captured_makes_its_root_stale",
    ),
    Guard(
        "a root is published when all its partitions are proven",
        "toolkit/lake/root_views.py",
        "if len(proven) == len(rows) and",
        "if proven and",
        "tests/e2e/test_roots.py::test_the_views_of_a_root_follow_its_partitions",
    ),
    Guard(
        "a proof whose table snapshot is gone is no proof",
        "toolkit/lake/proofs.py",
        'row["snapshot_id"]) is None\n',
        'row["snapshot_id"]) is None and False\n',
        "tests/e2e/test_quality_check.py::test_a_table_whose_proven_snapshot_is_gone_is_not_ok",
    ),
    Guard(
        "a small table without columns has rows",
        "toolkit/lake/small_lines.py",
        "not 0 < len(side.plan.columns) <= _COLUMNS",
        "len(side.plan.columns) > _COLUMNS",
        "tests/spark/test_small_lines.py::test_the_rows_of_a_table_without_columns_are_counted",
    ),
    never(
        "own tables of a publication for all tables",
        "toolkit/decode/transaction.py",
        "message.schema == LOG_SCHEMA",
        "tests/postgres/test_new_key.py::test_the_key_is_not_in_the_log_of_a_publication_for_all_tables",
    ),
    Guard(
        "values that the catalog has lost",
        "toolkit/capture/drift.py",
        "if last is not None and not last.table.dropped:\n            found =",
        "if False:\n            found =",
        "tests/postgres/test_trap_rewrites.py::test_trap_070_and_077_a_comparison_keeps_what_the_catalog_has_lost",
    ),
    Guard(
        "arrays without commas between their elements",
        "sql/install/20_table_snapshot.sql",
        ") <> ',' then '{\"type_kind\": \"a\"}'",
        ") = '' then '{\"type_kind\": \"a\"}'",
        "tests/postgres/test_capture.py::test_trap_108_an_array_without_commas_between_its_elements_is_a_text",
    ),
    Guard(
        "partitions left to the drain by init",
        "toolkit/source/guard.py",
        "if drains or not (p.moved and p.known)",
        "if True",
        "tests/postgres/test_trap_publications.py"
        "::test_trap_097_init_leaves_a_partition_whose_trigger_was_off_to_the_drain",
    ),
    Guard(
        "a database behind a pooler",
        "toolkit/source/claim.py",
        "state.database == state.here",
        "state.database == conn.info.dbname",
        "tests/postgres/test_two_lakes.py"
        "::test_a_lake_behind_a_pooler_with_its_own_name_for_the_database_takes_nothing_from_another",
    ),
    Guard(
        "the record that a late maintenance repeats",
        "toolkit/lake/ledger.py",
        'if stated is not None and summary.get("operation") == "append":',
        "if stated is not None:",
        "tests/unit/test_direct_append.py::test_the_newest_batch_is_not_the_one_that_a_late_maintenance_found",
    ),
    Guard(
        "the list of new files on the disk",
        "toolkit/lake/file_lists.py",
        "        os.fsync(self._listed.fileno())\n",
        "",
        "tests/unit/test_storage.py::test_trap_012_a_power_cut_does_not_bring_a_committed_file_back_into_the_list",
    ),
    Guard(
        "the password of another lake",
        "toolkit/lake/session.py",
        "            fresh.conf.unset(key)\n",
        "            pass\n",
        "tests/spark/test_session.py::test_another_lake_does_not_get_the_password_of_this_one",
    ),
    Guard(
        "a difference that no check has compared again",
        "toolkit/quality/published.py",
        "return different_lsn(known) if known and",
        "return None if known and",
        "tests/spark/test_publish.py::test_a_difference_stays_known_until_a_check_compares_the_table_again",
    ),
    Guard(
        "the generation of a table that was never proven",
        "toolkit/quality/published.py",
        'known.get("generation") or of',
        "of",
        "tests/spark/test_publish.py::test_an_older_check_that_ends_late_proves_no_table_that_a_newer_one_found_to_differ",
    ),
)
