"""Guards of the code that runs on the source, `sql` and `toolkit/source`, and what a guard is."""

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
_RIGHTS = "tests/postgres/test_rights.py::"
_OWNER = "tests/postgres/test_owner.py::"
_LAKES = "tests/postgres/test_two_lakes.py::"
_PREDEFINED = "tests/postgres/test_predefined_roles.py::"
_GRANTS = "tests/postgres/test_grants.py::"
_ROLES = "tests/postgres/test_roles.py::"
_ROLES_SQL = "sql/install/42_roles.sql"
_STATUS = "tests/postgres/test_status.py::"
_REWRITES = "tests/postgres/test_trap_rewrites.py::"
_CAPTURE, _LOG = "sql/install/30_capture.sql", "sql/changelog/10_log.sql"
_PATH = "security definer\nset search_path = pg_catalog, pg_temp"


def never(name: str, file: str, condition: str, test: str) -> Guard:
    """A condition that refuses, made one that never does."""
    return Guard(name, file, f"if {condition}:", "if False:", test)


def _definer(file: str, head: str) -> Guard:
    text = f"function cdc.{head}\nlanguage plpgsql\n{_PATH}"
    return Guard(f"pg_temp last in {head.partition('(')[0]}", file, text, text.removesuffix(", pg_temp"), _PINS)


def _revoked(file: str, what: str) -> Guard:
    return Guard(f"no right of PUBLIC on {what}", file, f"revoke all on {what} from public;\n", "", _PUBLIC)


def _pinned(name: str, value: str) -> Guard:
    return Guard(f"pinned {name}", "toolkit/source/connection.py", f'    ("{name}", "{value}"),', "", _CONNECTION)


GUARDS_OF_SOURCE = (
    never(
        "a password sent to executors",
        "toolkit/capture/executor_copies.py",
        "found or _VARIABLE in access.spark",
        "tests/unit/test_cluster.py::test_a_password_is_not_sent_to_executors",
    ),
    never(
        "another version's capture",
        "toolkit/source/preflight.py",
        "guard.of_another_version(conn)",
        "tests/postgres/test_upgrade.py::test_an_older_installation_is_named_until_init_replaces_it",
    ),
    _definer(_CAPTURE, "capture_command()\nreturns event_trigger"),
    _definer(_CAPTURE, "keep_publications()\nreturns event_trigger"),
    _definer(_CAPTURE, "capture_drop()\nreturns event_trigger"),
    _definer(_CAPTURE, "capture_rewrite()\nreturns event_trigger"),
    _definer(_CAPTURE, "beacon()\nreturns text"),
    _definer(_LOG, "log_row()\nreturns trigger"),
    _definer(_LOG, "log_rows()\nreturns trigger"),
    *(
        _revoked(_CAPTURE, f"function cdc.{name}")
        for name in (
            "sign(bytea)",
            "is_signed(bytea, bytea)",
            "beacon()",
            "write_wal()",
            "emit(text, jsonb)",
            *("own(jsonb)", "keep_publications()", "capture_command()"),
        )
    ),
    *(
        _revoked(_LOG, f"function cdc.{name}")
        for name in ("log_row()", "present(oid, text, anyarray, tid)", "own_reader(oid)", "purge_log(pg_snapshot)")
    ),
    _revoked("sql/install/41_fingerprint.sql", "function cdc.fingerprint()"),
    Guard(
        "row_security off in log_row",
        _LOG,
        "set row_security = off\nset lock_timeout = 0\nas $function$\ndeclare\n  latest",
        "set lock_timeout = 0\nas $function$\ndeclare\n  latest",
        _PINS,
    ),
    Guard(
        "lock_timeout of a message",
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
        "toolkit/source/selection.py",
        "if r.table and any(p.holds(r) for p in held)",
        "if r.capturable and any(p.holds(r) for p in held)",
        f"{_STATUS}test_what_a_publication_of_others_for_all_tables_does_not_send_is_listed",
    ),
    Guard(
        "a rewrite is exact only of an empty table",
        _CAPTURE,
        "and pg_relation_size(c.oid, 'main') = 0",
        "",
        f"{_REWRITES}test_trap_068_a_rewrite_of_a_table_that_may_hold_rows_is_stale",
    ),
    never(
        "an advance that stops short",
        "toolkit/source/slot.py",
        "reached < lsn",
        f"{_G}test_an_advance_that_stops_short_is_an_error",
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
        "            _end(conn, source.slot, pid)\n",
        "            pass\n",
        f"{_STREAM}test_a_stream_leaves_the_slot_free_while_the_server_decodes_more",
    ),
    Guard(
        "foreign messages of a stream are hashed",
        "toolkit/source/streaming.py",
        '_own(message, signed) if message[:1] == b"M" else message',
        "message",
        f"{_STREAM}test_a_stream_gives_the_bytes_of_a_peek",
    ),
    never(
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
        ") using drained into rows_left; -- while it is locked, no other session can have written a row",
        ") using drained;",
        f"{_G}test_a_row_that_comes_while_a_purge_looks_is_kept",
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
    Guard(
        "only rows of this transaction are late",
        _LOG,
        "late := cdc.of_this_transaction(old.xmin);",
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
    never(
        "a table that is still the one of the snapshot",
        "toolkit/source/row_lines.py",
        "not (same_table and same_files)",
        "tests/postgres/test_parity_reads.py",
    ),
    never(
        "partitions that are still those of the snapshot",
        "toolkit/source/row_lines.py",
        "not same_parts",
        "tests/postgres/test_parity_reads.py",
    ),
    never(
        "a file that is still the one of the snapshot",
        "toolkit/source/snapshot_rows.py",
        "same is None or not (same[0] and same[2])",
        "tests/postgres/test_copying.py",
    ),
    never("a LSN of the flushed WAL", "toolkit/source/slot.py", "lsn > flushed", "tests/postgres/test_slot.py"),
    Guard(
        "no cast to an owner's type",
        "toolkit/source/row_lines.py",
        'return "." not in column.base',
        "return True",
        f"{_RIGHTS}test_reading_by_keys_runs_no_code_of_the_owner",
    ),
    never(
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
        "    owners_code.refuse(conn, table.relid, table.identifier)  # each statement is planned again\n",
        "",
        f"{_RIGHTS}test_no_plan_of_a_comparison_runs_code_of_the_owner",
    ),
    Guard(
        "images without casts",
        _LOG,
        "was := case when tg_op <> 'INSERT' then record_out(old) end;",
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
    never(
        "a schema cdc of one's own, at each connection",
        "toolkit/source/connection.py",
        "foreign is not None",
        f"{_RIGHTS}test_a_schema_cdc_of_another_role_is_refused",
    ),
    Guard(
        "a schema cdc of one's own",
        "sql/introspect/foreign_objects.sql",
        "where f.owner not in (\n",
        "where false and f.owner not in (\n",
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
        "only the installer changes capture",
        "toolkit/source/roles.py",
        "if superuser or owner == role or",
        "if True or superuser or owner == role or",
        f"{_ROLES}test_row_6_commands_that_change_capture_name_the_role_that_may",
    ),
    Guard(
        "the drainer installs nothing",
        "toolkit/source/roles.py",
        "role not in (source.drainer, source.reader)",
        "True",
        f"{_ROLES}test_row_6_the_drainer_installs_nothing_where_nothing_is_installed",
    ),
    Guard(
        "no drainer above the installer",
        "sql/introspect/role.sql",
        "pg_catalog.pg_has_role(r.oid, a.oid, 'member')",
        "false",
        f"{_ROLES}test_row_6_a_drainer_that_is_not_limited_is_refused",
    ),
    Guard(
        "no right of a former drainer",
        _ROLES_SQL,
        "where a.grantee not in (0, o.owner)",
        "where false",
        f"{_GRANTS}test_row_6_another_drainer_takes_the_rights_of_the_first",
    ),
    Guard(
        "no right on the key",
        _ROLES_SQL,
        "('select', 'cdc.known_settings', true, false),",
        "('select', 'cdc.known_settings', true, false), ('select', 'cdc.signing_key', true, false),",
        f"{_ROLES}test_row_6_what_neither_the_drainer_nor_the_reader_can_do",
    ),
    Guard(
        "no right to sign",
        _ROLES_SQL,
        "('execute', 'function cdc.beacon()', false, false),",
        "('execute', 'function cdc.beacon()', false, false), ('execute', 'function cdc.sign(bytea)', false, false),",
        f"{_ROLES}test_row_6_what_neither_the_drainer_nor_the_reader_can_do",
    ),
    Guard(
        "no right to write the change log",
        _ROLES_SQL,
        "('execute', 'function cdc.forget_ticks(pg_lsn)', false, true),",
        "('execute', 'function cdc.forget_ticks(pg_lsn)', false, true), ('insert', 'cdc.change_log', false, true),",
        f"{_ROLES}test_row_6_what_neither_the_drainer_nor_the_reader_can_do",
    ),
    Guard(
        "SELECT ends with the selection",
        _ROLES_SQL,
        "      and c.oid <> all (keep)\n",
        "      and false\n",
        f"{_GRANTS}test_row_6_a_table_that_leaves_the_selection_is_no_longer_read",
    ),
    Guard(
        "the purge pins its path",
        _LOG,
        f"{_PATH}\nset row_security = off\nas $function$\ndeclare\n  written",
        "security definer\nas $function$\ndeclare\n  written",
        f"{_ROLES}test_row_6_objects_of_the_drainer_do_not_run_as_another_role",
    ),
    Guard(
        "the beacon pins its path",
        _CAPTURE,
        f"{_PATH}\nset row_security = off\nas $function$\ndeclare\n  nonce",
        "security definer\nas $function$\ndeclare\n  nonce",
        f"{_ROLES}test_row_6_objects_of_the_drainer_do_not_run_as_another_role",
    ),
    Guard(
        "functions of capture have an owner without rights",
        "sql/install/43_owner.sql",
        "select format('alter function %s owner to cdc_owner', p.oid::regprocedure)",
        "select 'select'",
        f"{_OWNER}test_row_1_only_named_functions_have_the_rights_of_the_installer",
    ),
    Guard(
        "an owner that no role can become",
        "sql/introspect/foreign_objects.sql",
        "      and not exists (select from pg_catalog.pg_auth_members as m where r.oid in (m.roleid, m.member))\n",
        "",
        f"{_OWNER}test_row_1_an_owner_that_a_role_can_become_is_refused_by_name",
    ),
    Guard(
        "an owner without rights of its own",
        "sql/install/43_owner.sql",
        "r.rolsuper or r.rolcanlogin or r.rolcreaterole",
        "r.rolsuper",
        f"{_OWNER}test_row_1_a_role_of_that_name_with_rights_is_refused",
    ),
    Guard(
        "the owner names types in a schema that a table was moved to",
        _CAPTURE,
        "where t.tgrelid = any (tables) and t.tgname like '!cdc\\_%' and not has_schema_privilege",
        "where false and not has_schema_privilege",
        f"{_OWNER}test_row_1_rows_out_of_order_are_logged_for_tables_of_any_owner_in_any_schema",
    ),
    Guard(
        "the settings of a lake are its own",
        "sql/install/10_schema.sql",
        "where s.slot in ('', current_setting('cdc.slot', true)) or",
        "where true or",
        f"{_LAKES}test_row_14_two_lakes_of_one_database_are_both_exact",
    ),
    Guard(
        "a message for another lake is passed over",
        "toolkit/decode/transaction.py",
        'if self.planner.context.slot is not None and data.get("slot")',
        'if False and data.get("slot")',
        f"{_LAKES}test_row_14_two_lakes_of_one_database_are_both_exact",
    ),
    Guard(
        "an event is written for each lake",
        _CAPTURE,
        "    perform cdc.write_message(event, fields || shown);\n",
        "    perform cdc.write_message(event, fields || shown);\n    exit;\n",
        f"{_LAKES}test_row_14_two_lakes_of_one_database_are_both_exact",
    ),
    Guard(
        "uninstall leaves what serves another lake",
        "toolkit/source/install.py",
        "others = other_lakes(conn, source)",
        "others = other_lakes(conn, source)[:0]",
        f"{_LAKES}test_row_14_uninstall_takes_its_own_only",
    ),
    Guard(
        "what only one lake can have",
        "toolkit/source/install.py",
        "        require_apart(conn, rules.source)\n",
        "",
        f"{_LAKES}test_row_14_a_publication_or_the_change_log_of_another_lake_is_refused",
    ),
    Guard(
        "the triggers of another lake's change log stay",
        "toolkit/source/change_log.py",
        "set() if others == (True,) else triggered(conn)",
        "triggered(conn)",
        f"{_LAKES}test_row_14_init_leaves_the_change_log_of_another_lake_alone",
    ),
    Guard(
        "the ticks of another lake stay",
        "toolkit/source/change_log.py",
        "    if not rules.uses_change_log:  # it may be that of another lake\n        return\n",
        "",
        f"{_LAKES}test_row_14_init_leaves_the_change_log_of_another_lake_alone",
    ),
    Guard(
        "the view of the settings cannot be written to",
        "sql/install/10_schema.sql",
        "coalesce(current_setting('cdc.slot', true), '') = ''\noffset 0;",
        "coalesce(current_setting('cdc.slot', true), '') = '';",
        f"{_PREDEFINED}test_members_of_pg_write_all_data_write_no_row",
    ),
    Guard(
        "the view of the change log cannot be written to",
        _LOG,
        "where cdc.reads_log()\noffset 0;",
        "where cdc.reads_log();",
        f"{_PREDEFINED}test_members_of_pg_write_all_data_write_no_row",
    ),
    Guard(
        "the view of the publications cannot be written to",
        "sql/install/10_schema.sql",
        ")\noffset 0;\nrevoke all on cdc.publications",
        ");\nrevoke all on cdc.publications",
        f"{_PREDEFINED}test_members_of_pg_write_all_data_write_no_row",
    ),
    Guard(
        "the view of the change log is not for all readers",
        _LOG,
        "where cdc.reads_log()\n",
        "",
        f"{_PREDEFINED}test_members_of_pg_read_all_data_read_no_row",
    ),
    Guard(
        "row security of the toolkit's tables",
        "sql/install/45_seal.sql",
        "execute format('alter table %s enable row level security', own.name);",
        "null;",
        f"{_PREDEFINED}test_members_of_pg_read_all_data_read_no_row",
    ),
    Guard(
        "two sessions of a tick on one server",
        "toolkit/source/ticks.py",
        '        slot.require_server(other, server, "taking a tick")\n',
        "",
        "tests/postgres/test_promotion.py::test_a_tick_is_of_one_server_and_that_is_the_primary",
    ),
)
