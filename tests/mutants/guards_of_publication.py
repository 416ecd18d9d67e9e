"""Guards of what is published: nothing excluded, and nothing of which writes of the application would fail."""

from __future__ import annotations

from tests.mutants.guards_of_source import Guard, never

_OWN, _SELECTION = "toolkit/source/own_publication.py", "toolkit/source/selection.py"
_TESTS = "tests/postgres/test_own_publication.py::"
_NEW = "tests/postgres/test_new_tables.py::"

GUARDS_OF_PUBLICATION = (
    Guard(
        "a parent is published without its children by inheritance",
        _OWN,
        """f"table only {', only '.join(names)}\"""",
        """f"table {', '.join(names)}\"""",
        f"{_TESTS}test_trap_051_children_by_inheritance_do_not_come_with_their_parent",
    ),
    Guard(
        "a new parent is published without its children by inheritance",
        "sql/install/30_capture.sql",
        "alter publication %I add table only %s",
        "alter publication %I add table %s",
        f"{_TESTS}test_a_new_child_by_inheritance_is_published_by_its_own_pattern",
    ),
    Guard(
        "a parent is no longer published, and its children by inheritance are",
        "toolkit/source/change_log.py",
        "drop table only {name}",
        "drop table {name}",
        f"{_TESTS}test_a_parent_that_leaves_the_publication_leaves_its_children_there",
    ),
    Guard(
        "a root is not published with a partition that must not be",
        _SELECTION,
        "r.relid not in apart)",
        "r.relid not in reasons)",
        f"{_TESTS}test_a_partition_that_is_excluded_is_not_published_with_its_root",
    ),
    Guard(
        "a root without primary key is not published",
        "sql/introspect/identity_missing.sql",
        "then 'partitions'",
        "then null",
        f"{_TESTS}test_trap_051_a_root_without_primary_key_does_not_bring_the_partitions_of_the_future",
    ),
    never(
        "a root in full is not published with what is excluded",
        _SELECTION,
        "rules.source.excludes(part.schema, part.name)",
        f"{_TESTS}test_a_root_that_is_named_in_full_is_refused_if_it_brings_what_it_must_not",
    ),
    Guard(
        "a new table is not published with its schema",
        "toolkit/values/capture_rules.py",
        "return self.new_tables == NewTables.SCHEMAS",
        "return self.new_tables != NewTables.PROPOSE and not self.exclude",
        f"{_NEW}test_a_new_table_without_a_key_is_left_out_without_exclude_too",
    ),
    Guard(
        "schemas that init has published are replaced by their tables",
        _OWN,
        "intersection(chosen if state.made else ())",
        "intersection(())",
        f"{_NEW}test_schemas_that_were_published_whole_are_published_table_by_table_from_the_next_init_on",
    ),
    Guard(
        "schemas that others have published stay",
        "toolkit/source/catalog.py",
        """made=str(row["oid"]) == oid""",
        "made=True",
        "tests/postgres/test_install.py::test_a_schema_that_others_publish_whole_cannot_leave_a_table_out",
    ),
    Guard(
        "a table that is excluded later is not published",
        _OWN,
        "if state.made and source.excludes(r.schema, r.name)",
        "if False",
        f"{_TESTS}test_a_table_that_is_excluded_later_leaves_the_publication_at_the_next_init",
    ),
    Guard(
        "an excluded table is published if others made the publication",
        _OWN,
        "if state.made and source.excludes(r.schema, r.name)",
        "if source.excludes(r.schema, r.name)",
        f"{_TESTS}test_a_publication_of_others_keeps_a_table_that_is_excluded",
    ),
    Guard(
        "a root that brings an excluded partition leaves the publication",
        _OWN,
        "if r.relid in leaving & state.relids and _by_init(source, state, r)",
        "if False",
        f"{_TESTS}test_a_partition_that_is_excluded_later_leaves_with_its_root_at_the_next_init",
    ),
    Guard(
        "the other partitions of a root that leaves stay in the publication",
        _OWN,
        "return roots, [*stay]",
        "return roots, []",
        f"{_TESTS}test_a_partition_that_is_excluded_later_leaves_with_its_root_at_the_next_init",
    ),
    Guard(
        "a root stays in a publication of others",
        "toolkit/source/catalog.py",
        "return self.made and not self.via_root",
        "return not self.via_root",
        f"{_TESTS}test_a_root_that_a_publication_of_others_has_stays_there",
    ),
    Guard(
        "a root that lost its primary key leaves the publication",
        _SELECTION,
        '    return found | {r.relid: reasons[r.relid] for r in every if r.kind == "p" and r.relid in reasons}',
        "    return found",
        f"{_TESTS}test_a_root_that_lost_its_primary_key_is_replaced_by_its_partitions",
    ),
    Guard(
        "a root stays although a partition has lost its replica identity",
        _SELECTION,
        "{relid: why for relid, why in reasons.items() if relid in roots}",
        "reasons",
        f"{_TESTS}test_a_published_table_that_lost_its_key_does_not_stop_init",
    ),
    Guard(
        "a change log that begins or ceases to be sent is described",
        "sql/install/30_capture.sql",
        "before -> p.oid::text -> 'publishes' ? 'insert' = ('insert' = any (p.publishes))",
        "true",
        "tests/postgres/test_altered_publication.py::test_a_change_log_that_is_not_sent_for_a_while_is_a_gap",
    ),
    Guard(
        "writes that fail by the filter of a root are found",
        "sql/introspect/writes_refused.sql",
        "where p.pubviaroot",
        "where false",
        "tests/postgres/test_preflight.py::test_a_root_whose_publication_makes_writes_of_a_partition_fail_is_found",
    ),
    never(
        "an alert names a root without primary key whose new partitions will fail",
        _OWN,
        'table.relid in own.relids & reasons.keys() and table.kind == "p" and _by_init(source, own, table)',
        f"{_TESTS}test_a_root_that_lost_its_primary_key_is_replaced_by_its_partitions",
    ),
    never(
        "a session without its settings is refused",
        "toolkit/source/connection.py",
        "found != source.slot",
        "tests/postgres/test_connection.py::test_a_pooler_that_ignores_the_settings_of_a_session_is_refused",
    ),
    Guard(
        "the server says whether a role may replicate",
        "toolkit/source/preflight.py",
        "not (replicates or roles.may_replicate(source))",
        "not replicates",
        "tests/postgres/test_preflight.py::test_the_server_says_whether_a_role_may_replicate",
    ),
    Guard(
        "a check names the gap that is open",
        "toolkit/quality/parity.py",
        "table_states(ledger, proven(lake.access, ledger))",
        "table_states(ledger)",
        "tests/e2e/test_quality_check.py::test_a_table_is_stale_since_its_latest_gap",
    ),
    never(
        "an excluded table is not captured by triggers",
        "toolkit/source/change_log.py",
        "relation.relid in triggers and rules.source.excludes(relation.schema, relation.name)",
        f"{_TESTS}test_a_table_that_triggers_capture_loses_them_when_it_is_excluded",
    ),
    never(
        "rows of a table that is not published any more are said to be so",
        "toolkit/history/rows_at_lsn.py",
        "state is None and not version.dropped",
        "tests/e2e/test_excluded.py::test_rows_of_an_excluded_table_are_those_of_an_earlier_lsn_and_said_to_be",
    ),
    Guard(
        "a published table without a key does not stop init",
        "toolkit/source/preflight.py",
        "refusal = None if relation.relid in published else PreflightFailed",
        "refusal = PreflightFailed",
        f"{_TESTS}test_a_published_table_that_lost_its_key_does_not_stop_init",
    ),
    Guard(
        "each scheduled command names a published table of which writes fail",
        "toolkit/ops/alerts.py",
        "wrong += of_writes(source.conn, config.source)",
        "pass",
        "tests/postgres/test_status.py::test_a_table_of_which_writes_fail_is_an_alert",
    ),
    Guard(
        "lint: a new table is published as the source would",
        "toolkit/source/trial.py",
        "    if not created:",
        "    if created:",
        "tests/postgres/test_lint.py::test_a_new_table_is_captured_if_the_source_publishes_it_at_its_create",
    ),
)
