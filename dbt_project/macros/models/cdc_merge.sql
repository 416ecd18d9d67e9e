{% macro cdc_merge(plan, decision) -%}
{%- set changes = cdc_changes(plan, decision, 'true' if decision.news.facts.toast else none) -%}
{%- set rows -%}
with {{ changes.ctes }}
select {{ changes.cells }}, put as _cdc_put, end_lsn as from_lsn
from w0 where next_commit is null and commit_lsn >= 0
{%- endset -%}
{%- do decision.update({
    'match': changes.match, 'matched': 'delete', 'added': '_cdc_put',
    'columns': plan.columns | map(attribute='lake') | list + ['_cdc_from_lsn', '_cdc_text']}) -%}
{{ cdc_project(plan, rows, dict({'_cdc_from_lsn': 'from_lsn', '_cdc_put': '_cdc_put'}, **changes.meta)) }}
{%- endmacro %}
