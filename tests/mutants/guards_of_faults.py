"""Guards against other histories, faults of servers and machines, and builds that see only a part."""

from __future__ import annotations

from tests.mutants.guards_of_source import Guard, never

_SAME = "toolkit/capture/same_history.py"
_PROMOTION = "tests/postgres/test_promotion.py::test_trap_027_a_synchronized_slot_goes_on_where_the_timeline_proves_it"
_CLOCK = "tests/unit/test_clock.py::"
_JVM = "tests/unit/test_jvm_end.py::test_each_command_names_a_jvm_that_was_killed"
_REBUILD = "tests/dbt/test_rebuild.py::"
_PARTITIONED = "tests/dbt/test_partitioned_tables.py::"
_OTHERS = "tests/dbt/test_small_tables.py::test_a_table_that_another_process_changes_is_left_to_its_model"
_MERGED = "tests/dbt/test_merge.py::test_merges_into_a_large_table_equal_a_full_rebuild"
_METRICS = "tests/postgres/test_metrics.py::"
_TORN = (
    "tests/e2e/test_quality_check.py::"
    "test_a_table_of_which_the_metadata_is_torn_does_not_keep_the_others_from_their_proof"
)
_OVERTAKEN = "tests/e2e/test_parity_races.py::test_what_another_runner_drains_during_a_check_is_not_taken_for_compared"
_HANDOVER = "tests/postgres/test_handover_killed.py::"
_LOGGED_DDL = "tests/postgres/test_change_log_ddl.py::"
_NEW_KEY = "tests/postgres/test_new_key.py::test_a_new_key_loses_no_ddl"

GUARDS_OF_FAULTS = (
    Guard(
        "a slot that the log never read stays",
        "toolkit/capture/handover.py",
        "any(b.slot == name and b.tick is None for b in",
        "any(True for b in",
        f"{_HANDOVER}test_a_slot_that_the_log_never_read_stays",
    ),
    Guard(
        "a table with partitions is left to its model",
        "toolkit/build/small_tables.py",
        "or found.quiet or found.partitioned or",
        "or found.quiet or",
        f"{_PARTITIONED}test_partitions_and_order_stay",
    ),
    Guard(
        "columns that another program has altered",
        "toolkit/lake/applied.py",
        "return made is not None and made.columns != self.columns",
        "return False",
        "tests/dbt/test_altered_columns.py::test_a_table_with_altered_columns_is_rebuilt",
    ),
    Guard(
        "no file without partition values",
        "toolkit/lake/table_commit.py",
        "if table.spec().isPartitioned():",
        "if False:",
        f"{_PARTITIONED}test_a_table_that_has_got_partitions_meanwhile_is_left_to_its_model",
    ),
    Guard(
        "no deletion vectors beside a partition that is gone",
        "toolkit/lake/table_commit.py",
        "**(_COPY_ON_WRITE if gone else {})",
        "**{}",
        f"{_PARTITIONED}test_a_partition_of_a_column_that_is_gone_is_named",
    ),
    Guard(
        "what another client consumes during a drain is missed",
        "toolkit/capture/slot_drain.py",
        "        self._require_unmoved(end.last)\n",
        "",
        "tests/postgres/test_read_ahead.py::test_what_another_client_consumes_during_a_drain_is_missed",
    ),
    Guard(
        "rows that were logged for another identity",
        "toolkit/decode/logged_rows.py",
        'op == "O" and log.new[i].as_py() != key',
        "False",
        f"{_LOGGED_DDL}test_rows_that_were_logged_out_of_order_for_another_identity",
    ),
    Guard(
        "a composite type had another attribute for a while",
        "sql/install/20_table_snapshot.sql",
        "f.attrelid = c.typrelid and f.attnum > 0\n      )",
        "f.attrelid = c.typrelid and f.attnum > 0 and not f.attisdropped\n      )",
        "tests/postgres/test_unseen_ddl.py::test_a_change_that_no_event_reports_is_found",
    ),
    Guard(
        "a slot that took the name of a dropped one stays",
        "toolkit/source/claim.py",
        "return _recorded(conn, source.slot) is not False",
        "return True",
        f"{_HANDOVER}test_a_slot_that_takes_the_name_of_a_dropped_one_stays",
    ),
    Guard(
        "a table that must not be published does not move to the slot",
        "toolkit/source/change_log.py",
        "table.relid in left or ",
        "",
        f"{_HANDOVER}test_a_table_that_cannot_move_from_triggers_to_the_slot_is_left_out",
    ),
    Guard(
        "a table that must not be published keeps no triggers",
        "toolkit/source/change_log.py",
        "in selection.matching(conn, rules.source):",
        "in selection.selected_relations(conn, rules):",
        f"{_HANDOVER}test_a_table_that_cannot_move_from_triggers_to_the_slot_is_left_out",
    ),
    Guard(
        "no rows that another process adds are overwritten",
        "toolkit/lake/table_commit.py",
        ".validateNoConflictingData()",
        "",
        _OTHERS,
    ),
    Guard(
        "no rows that another process deletes come back",
        "toolkit/lake/table_commit.py",
        ".validateNoConflictingDeletes()",
        "",
        _OTHERS,
    ),
    Guard(
        "a merge reads each range of changed keys",
        "dbt_project/macros/models/cdc_key_ranges.sql",
        "in found %}",
        "in found[1:] %}",
        _MERGED,
    ),
    Guard(
        "a range of changed keys has its highest key",
        "dbt_project/macros/models/cdc_key_ranges.sql",
        "' and ' ~ high[1:])",
        "' and ' ~ low[1:])",
        _MERGED,
    ),
    Guard(
        "a merge adds only what the fold puts",
        "dbt_project/macros/decide/cdc_apply.sql",
        '" where " ~ decision.added',
        '" where true"',
        _MERGED,
    ),
    Guard(
        "a merge fills unchanged TOAST from the table",
        "dbt_project/macros/models/cdc_changes.sql",
        "(attnum in facts.toast or attnum in segment.key)",
        "(attnum in segment.key)",
        _MERGED,
    ),
    Guard(
        "a merge removes the rows that it replaces",
        "dbt_project/macros/models/cdc_merge.sql",
        "'matched': 'delete'",
        "'matched': \"update set t._cdc_text = t._cdc_text\"",
        _MERGED,
    ),
    Guard(
        "values that no event has are those of the built table",
        "toolkit/lake/shared_fold.py",
        "if not folded.held:",
        "if True:",
        "tests/dbt/test_small_tables.py::test_tables_built_together_are_what_their_models_make",
    ),
    Guard(
        "each build merges on a branch of its own",
        "dbt_project/macros/decide/cdc_branch.sql",
        "{{ invocation_id.replace('-', '') }}",
        "0",
        "tests/dbt/test_merge.py::test_a_merge_that_does_not_reach_main_changes_nothing",
    ),
    Guard(
        "a replacement is committed on what it began with",
        "toolkit/lake/table_commit.py",
        "transaction.underlyingOps().commit(base, transaction.currentMetadata())",
        "transaction.commitTransaction()",
        f"{_REBUILD}test_a_late_replacement_takes_nothing_back",
    ),
    Guard(
        "a replacement begins with what the build has found",
        "toolkit/lake/table_commit.py",
        "if found != commit.since:",
        "if False:",
        f"{_REBUILD}test_what_a_build_has_not_found_is_not_replaced",
    ),
    Guard(
        "a full refresh at an older position takes nothing back",
        "dbt_project/macros/decide/cdc_decide.sql",
        "{% if decided is none and target.batch <=",
        "{% if not flags.FULL_REFRESH and decided is none and target.batch <=",
        f"{_REBUILD}test_a_plain_full_refresh_at_an_older_position_takes_nothing_back",
    ),
    Guard(
        "no older build replaces the table of a newer relation",
        "toolkit/lake/targets.py",
        "if target.batch > aim.batch or (target.generation",
        "if (target.generation",
        "tests/unit/test_decision.py::test_a_table_ahead_of_the_log_is_decided_when_its_model_runs",
    ),
    Guard(
        "a plain run of dbt is refused without the plugin",
        "dbt_project/macros/run/cdc_begin.sql",
        "adapter.cdc_replace is not defined and",
        "false and",
        f"{_REBUILD}test_without_the_plugin_a_plain_run_writes_nothing",
    ),
    Guard(
        "the last build has the highest position, not the latest time",
        "dbt_project/macros/decide/cdc_target_state.sql",
        " cast(s.summary['cdc.applied-batch'] as bigint) desc,",
        " h.made_current_at desc,",
        "tests/dbt/test_plain_runs.py::test_a_clock_that_stepped_back_hides_no_build",
    ),
    Guard(
        "a model replaces the table snapshot that it has found",
        "dbt_project/macros/decide/cdc_target_state.sql",
        "{% do return({'snapshot': snapshot}) %}",
        "{% do return({}) %}",
        f"{_REBUILD}test_a_plain_run_of_dbt_creates_and_replaces_tables",
    ),
    Guard(
        "a tag names what its run has built",
        "dbt_project/macros/decide/cdc_tag.sql",
        ' ~ "` as of version " ~ snapshot',
        ' ~ "`"',
        "tests/dbt/test_merge.py::test_a_merge_that_does_not_reach_main_changes_nothing",
    ),
    Guard(
        "a timeline that left before the ledger's end",
        _SAME,
        "left is None or left < needed",
        "left is None",
        _PROMOTION,
    ),
    Guard(
        "a timeline has the beacon too",
        _SAME,
        "Lsn(max(last.complete_to, last.beacon_lsn or 0))",
        "last.complete_to",
        _PROMOTION,
    ),
    Guard(
        "no return to an earlier timeline",
        _SAME,
        '("system_id", "timeline", "database_oid")',
        '("system_id", "database_oid")',
        _PROMOTION,
    ),
    Guard(
        "init follows a timeline only with proof",
        "toolkit/capture/initialise.py",
        "last = followed(conn, source.config, last, here)",
        "last = replace(last, identity=here)",
        _PROMOTION,
    ),
    Guard(
        "a name shows the table that was proven last, by the log",
        "toolkit/lake/proofs.py",
        'key=lambda row: (row.get("batch_id") or 0,',
        'key=lambda row: (row["proven_at"],',
        f"{_CLOCK}test_a_name_shows_the_proof_of_the_later_batch",
    ),
    Guard(
        "no full comparison from the future",
        "toolkit/quality/incremental.py",
        "due < p.full_at <= now",
        "due < p.full_at",
        f"{_CLOCK}test_a_full_comparison_from_the_future_is_due_again",
    ),
    Guard(
        "unseen transactions are of this source",
        "toolkit/lake/evidence.py",
        "generation = {generation} and ",
        "",
        "tests/postgres/test_cut.py::test_a_commit_that_waits_over_many_drains_is_not_forgotten",
    ),
    never(
        "a build names a JVM that was ended",
        "toolkit/build/dbt_run.py",
        "(ended := jvm_end(0.2)) is not None",
        _JVM,
    ),
    Guard(
        "a command names a JVM that was ended",
        "toolkit/cli/frame.py",
        "    ended = jvm_end()\n",
        "    ended = None\n",
        _JVM,
    ),
    Guard(
        "a replaced key signs for no later transaction",
        "sql/install/30_capture.sql",
        "(convert_from(content, 'UTF8')::jsonb ->> 'xid')::xid8 < replace(o.name, 'outer before ', '')::xid8",
        "true",
        _NEW_KEY,
    ),
    Guard(
        "a replaced key verifies what it has signed",
        "sql/install/30_capture.sql",
        "where k.name like 'outer before %'",
        "where false",
        _NEW_KEY,
    ),
    Guard(
        "no key is replaced under an open transaction",
        "sql/install/retire_key.sql",
        "lock table cdc.signing_key in access exclusive mode nowait;",
        "",
        _NEW_KEY,
    ),
    never(
        "a log of another database",
        _SAME,
        "was != database",
        "tests/postgres/test_many_sources.py::test_a_prefix_that_another_source_has_is_refused_before_anything_is_made",
    ),
    never(
        "a project of another source",
        "toolkit/build/project.py",
        "schema != access.names.staging",
        "tests/unit/test_project.py::test_a_project_of_another_source_is_refused",
    ),
    Guard(
        "a check builds a table of which only `history` is behind",
        "toolkit/quality/built_tables.py",
        "for one in (made[table.relid], versions)]",
        "for one in (made[table.relid],)]",
        "tests/e2e/test_quality_check.py::test_a_table_that_cannot_be_built_does_not_keep_the_others_from_their_proof",
    ),
    never(
        "a build as of an LSN from before the log",
        "toolkit/build/dbt_run.py",
        "as_of < begins",
        "tests/dbt/test_scenarios.py::test_an_lsn_before_the_log_is_refused",
    ),
    Guard(
        "a build as of an LSN leaves no table that is unknown there",
        "toolkit/build/dbt_run.py",
        "retired.drop_unknown(lake.access, schema, synced.models.values())",
        "pass",
        "tests/dbt/test_scenarios.py::test_what_an_earlier_build_as_of_an_lsn_made_goes_when_it_is_unknown_there",
    ),
    Guard(
        "a proof is of the batches that the check has built",
        "toolkit/quality/parity.py",
        "self.batch_id = built.batch_id",
        "self.batch_id = getattr(ledger.last(), 'batch_id', 0)",
        _OVERTAKEN,
    ),
    never(
        "a table that another runner built further",
        "toolkit/quality/built_tables.py",
        "place is not None and place[0] > news.end[0]",
        _OVERTAKEN,
    ),
    Guard(
        "a check asks for no table of which the metadata is damaged",
        "toolkit/quality/built_tables.py",
        "builds.append((table.relid, None))",
        "pass",
        _TORN,
    ),
    Guard(
        "the recording of classes on the lake that the environment names",
        "toolkit/lake/class_recording.py",
        "LakeAccess(Path(lake), LakeConfig(), {**settings, **option})",
        "__import__('toolkit.values.config', fromlist=['']).Config(root=Path(lake), spark={**settings, **option})"
        ".lake_access",
        "tests/spark/test_session.py::test_a_jvm_takes_its_classes_from_the_archive",
    ),
    Guard(
        "metrics of a status that cannot be read",
        "toolkit/cli/pipeline.py",
        "if metrics is not None:",
        "if metrics is not None and found is not None:",
        f"{_METRICS}test_a_status_that_cannot_be_read_is_not_ok",
    ),
    Guard(
        "the worse of two samples of a table",
        "toolkit/ops/metrics.py",
        "min(value, values.get(label, value))",
        "max(value, values.get(label, value))",
        f"{_METRICS}test_times_are_those_of_the_proofs_and_the_worse_of_two_tables_counts",
    ),
    Guard(
        "the slot of another database as a stage that is done",
        "toolkit/capture/stages.py",
        "slot.require_ours(state)",
        "pass",
        "tests/postgres/test_stages.py::test_the_slot_of_another_database_is_no_done_stage",
    ),
    Guard(
        "a key that rows did not have for a while",
        "toolkit/decode/ddl.py",
        'if key != was["key_constraint"][0] and stamp not in own:',
        "if False:",
        f"{_LOGGED_DDL}test_a_table_that_had_no_key_for_a_while",
    ),
    Guard(
        "a captured key explains itself",
        "sql/install/30_capture.sql",
        "select jsonb_path_query(tables, '$[*].key_constraint[1]')",
        "select null",
        f"{_LOGGED_DDL}test_a_table_that_had_no_key_for_a_while",
    ),
    Guard(
        "a trigger of the log that was another one",
        "toolkit/decode/ddl.py",
        'if "triggers" in was and _replaced_triggers(was["triggers"], now.get("triggers"), own):',
        "if False:",
        f"{_LOGGED_DDL}test_a_trigger_that_was_disabled_uncaptured_before_a_captured_command",
    ),
    Guard(
        "rows of a subscription fire no statement triggers",
        "sql/install/30_capture.sql",
        "if tg_tag like '%SUBSCRIPTION' then",
        "if false then",
        f"{_LOGGED_DDL}test_a_subscription_between_two_drains",
    ),
    Guard(
        "labels of the LSN that is asked for",
        "toolkit/history/rows_at_lsn.py",
        "fields |= {name: relabelled_sql",
        "_ = {name: relabelled_sql",
        "tests/dbt/test_scenarios.py::test_rows_at_an_lsn_have_the_labels_of_that_time",
    ),
    Guard(
        "a key that is not published identifies no row",
        "toolkit/rawlog/plan.py",
        "return table.key_attnums if table.keyed and sent else ()",
        "return table.key_attnums if table.keyed else ()",
        "tests/e2e/test_publications.py::test_rows_of_a_table_whose_key_is_not_published_are_all_there",
    ),
)
