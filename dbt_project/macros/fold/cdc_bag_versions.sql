{% macro cdc_bag_versions(plan, i, segment, columns, initial, whole) -%}
{%- set cells -%}{% for column in columns %}s{{ column.attnum }}{{ ', ' if not loop.last }}{% endfor %}{%- endset -%}
e{{ i }} as (
  select commit_lsn, ordinal, end_lsn, x.delta{% for column in columns %},
    case when x.delta < 0 or coalesce(array_contains(unchanged, {{ column.attnum }}), false) then {{ cdc_cell('old', column) }} else {{ cdc_cell('new', column) }} end as s{{ column.attnum }}{% endfor %}
  from (
    select commit_lsn, ordinal, end_lsn, op, new, old, unchanged {{ cdc_of_segment(plan, segment) }}
  ) lateral view explode(case when op = 'U' then array(-1, 1) when op = 'D' then array(-1) else array(1) end) x as delta
  {%- if initial %}
  union all
  {#- Rows from before the segment come before its events, in the order of their age: equal ones may differ in it. #}
  select {{ 'end_lsn - 4611686018427387904' if whole else 'cast(-1 as bigint)' }}, cast(0 as bigint), end_lsn, 1{% for column in columns %}, {{ cdc_cell('new', column) }}{% endfor %} from {{ initial }}
  {%- endif %}
),
{%- if not whole %}
r{{ i }} as (
  select {{ cells }}, from_lsn, cast(null as bigint) as to_lsn from (
    select {{ cells }}, sum(delta) as n, max(case when delta > 0 then end_lsn end) as from_lsn from e{{ i }} group by {{ cells }}
  ) lateral view explode(case when n > 0 then sequence(1, n) when n < 0 then {{ cdc_refuse(plan) }} end) x as copy
)
{%- else %}
d{{ i }} as (
  select {{ cells }}, epoch, commit_lsn, max(cleared) as cleared, sum(delta) as d, max(end_lsn) as end_lsn
  from (select *, {{ segment.cleared }} as cleared, {{ segment.epoch }} as epoch from e{{ i }})
  group by {{ cells }}, epoch, commit_lsn
),
n{{ i }} as (
  select *, sum(d) over (partition by {{ cells }}, epoch order by commit_lsn) as n from d{{ i }} where d <> 0
),
r{{ i }} as (
  select {{ cells }}, from_lsn, to_lsn from (
    select {{ cells }}, d, end_lsn as from_lsn,
      least(lead(end_lsn) over (partition by {{ cells }}, epoch, copy order by commit_lsn), cleared) as to_lsn
    from n{{ i }} lateral view explode(case when n < 0 or n - d < 0 then {{ cdc_refuse(plan) }}
      when d > 0 then sequence(n - d + 1, n) else sequence(n + 1, n - d) end) x as copy
  ) where d > 0 and (to_lsn is null or from_lsn < to_lsn)
)
{%- endif %}
{%- endmacro %}
