{% macro cdc_merge(plan, decision) -%}
{%- set changes = cdc_changes(plan, decision, 'true' if decision.news.facts.toast else none) -%}
{%- set rows -%}
with {{ changes.ctes }}
select {{ changes.cells }}, put as _cdc_put, end_lsn as from_lsn
from w0 where next_commit is null and commit_lsn >= 0 and {{ changes.unmoved }}
{%- endset -%}
{%- set names = plan.columns | map(attribute='lake') | list + ['_cdc_from_lsn', '_cdc_text'] -%}
merge into {{ this }} t using (
{{ cdc_project(plan, rows, dict({'_cdc_from_lsn': 'from_lsn', '_cdc_put': '_cdc_put'}, **changes.meta)) }}
) s on {{ changes.match }}
when matched and not s._cdc_put then delete
when matched then update set {% for name in names %}t.{{ cdc_quote(name) }} = s.{{ cdc_quote(name) }}{{ ', ' if not loop.last }}{% endfor %}
when not matched and s._cdc_put then {{ cdc_insert(names) }}
{%- endmacro %}
