{% macro cdc_merge_versions(plan, decision) -%}
{%- set changes = cdc_changes(plan, decision, '_cdc_to_lsn is null') -%}
{%- set rows -%}
with {{ changes.ctes }}
select {{ changes.cells }}, commit_lsn < 0 as _cdc_held, end_lsn as from_lsn, next_end as to_lsn
from w0 where put and (next_commit is null or next_commit <> commit_lsn) and (next_end is null or end_lsn < next_end)
  and (commit_lsn >= 0 or next_end is not null)
{%- endset -%}
{%- do decision.update({
    'match': changes.match ~ ' and s._cdc_held and t._cdc_to_lsn is null and t._cdc_from_lsn = s._cdc_from_lsn',
    'matched': 'update set t._cdc_to_lsn = s._cdc_to_lsn, t._cdc_doubtful = s._cdc_doubtful', 'added': 'not _cdc_held',
    'columns': plan.columns | map(attribute='lake') | list + ['_cdc_from_lsn', '_cdc_to_lsn', '_cdc_doubtful', '_cdc_text']}) -%}
{{ cdc_project(plan, rows, dict({'_cdc_from_lsn': 'from_lsn', '_cdc_to_lsn': 'to_lsn', '_cdc_doubtful': cdc_doubtful(plan), '_cdc_held': '_cdc_held'},
                                **changes.meta)) }}
{%- endmacro %}
