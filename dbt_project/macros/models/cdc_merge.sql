{% macro cdc_merge(plan, decision) -%}
{%- set segment, p, target, facts = plan.segments[-1], plan.position, decision.target, decision.news.facts -%}
{%- set window = {'low': {'commit': target.lsn, 'ordinal': -1}, 'high': none, 'key': segment.key} -%}
{%- set by_attnum = {} -%}{%- for column in plan.columns -%}{%- do by_attnum.update({column.attnum: column}) -%}{%- endfor -%}
{%- set ctes = [] -%}
{%- if facts.toast -%}
  {#- only the target's rows whose keys occur in the new events -#}
  {%- set cells = [] -%}
  {%- for attnum in range(1, (plan.columns | map(attribute='attnum') | max) + 1) -%}
    {%- do cells.append((cdc_text_of(by_attnum[attnum].lake, by_attnum[attnum], 't.') | trim)
        if attnum in by_attnum and (attnum in facts.toast or attnum in segment.key) else 'cast(null as string)') -%}
  {%- endfor -%}
  {%- set keys = [] -%}
  {%- set texts = [] -%}
  {%- for k in segment.key -%}
    {%- do keys.append('x.k' ~ loop.index) -%}
    {%- do texts.append((cdc_text_of(by_attnum[k].lake, by_attnum[k], 't.') | trim) ~ ' = x.k' ~ loop.index) -%}
  {%- endfor -%}
  {%- do ctes.append('i0 as (select array(' ~ cells | join(', ') ~ ') as new, t._cdc_from_lsn as end_lsn from ' ~ this
      ~ ' version as of ' ~ target.snapshot ~ ' t left semi join (' ~ cdc_window_keys(plan, window, facts) ~ ') x on ' ~ texts | join(' and ') ~ ')') -%}
{%- endif -%}
{%- do ctes.append(cdc_keyed(plan, 0, window, plan.columns, facts, 'i0' if facts.toast else none)) -%}
{%- if facts.chained -%}
  {%- do ctes.append(cdc_resolved(plan, 0, cdc_links(plan, 0, ctes | join(',\n'), plan.columns, facts), plan.columns, facts)) -%}
{%- endif -%}
{%- set match = [] -%}
{%- for k in segment.key -%}
  {%- do match.append((cdc_text_of(by_attnum[k].lake, by_attnum[k], 't.') | trim) ~ ' = s._cdc_k' ~ loop.index) -%}
{%- endfor -%}
{%- set rows -%}
with {{ ctes | join(',\n') }}
select {% for column in plan.columns %}{{ cdc_carried(column, facts) }} as s{{ column.attnum }}, {% endfor %}
  {% for k in segment.key %}k{{ loop.index }} as _cdc_k{{ loop.index }}, {% endfor %}put as _cdc_put, end_lsn as from_lsn
from w0 where next_commit is null and commit_lsn >= 0
  and (select if(max(snapshot_id) = {{ target.snapshot }}, true, raise_error('{{ this }} moved while this run was compiled; run it again'))
       from {{ this }}.refs where name = 'main')
{%- endset -%}
{%- set meta = {'_cdc_from_lsn': 'from_lsn', '_cdc_put': '_cdc_put'} -%}
{%- for k in segment.key -%}{%- do meta.update({'_cdc_k' ~ loop.index: '_cdc_k' ~ loop.index}) -%}{%- endfor -%}
{%- set names = plan.columns | map(attribute='lake') | list + ['_cdc_from_lsn', '_cdc_text'] -%}
merge into {{ this }} t using (
{{ cdc_project(plan, rows, meta) }}
) s on {{ match | join(' and ') }}
when matched and not s._cdc_put then delete
when matched then update set {% for name in names %}t.{{ cdc_quote(name) }} = s.{{ cdc_quote(name) }}{{ ', ' if not loop.last }}{% endfor %}
when not matched and s._cdc_put then insert ({% for name in names %}{{ cdc_quote(name) }}{{ ', ' if not loop.last }}{% endfor %})
  values ({% for name in names %}s.{{ cdc_quote(name) }}{{ ', ' if not loop.last }}{% endfor %})
{%- endmacro %}
