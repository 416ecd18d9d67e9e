{% macro cdc_keyed(plan, i, segment, columns, facts, initial, split=false, whole=false) -%}
{%- set key = segment.key -%}
{%- set toast = [] -%}
{%- for column in columns if column.attnum in facts.toast -%}{%- do toast.append(column) -%}{%- endfor -%}
{%- set events -%}
select commit_lsn, ordinal, end_lsn, op, old_kind, new, old, unchanged {{ cdc_of_segment(plan, segment) }}
{%- endset -%}
{%- if split and facts.changed %}
x{{ i }} as ({{ cdc_window_keys(plan, segment) }}),
{% endif -%}
e{{ i }} as (
  {{ events }}{% if split %} and {{ cdc_is_change() }}{% endif %}
  {%- if split and facts.changed and (whole or toast) %}
  union all
  select /*+ broadcast(x) */ e.* from ({{ events }} and op = 'R') e left semi join x{{ i }} x on {% for k in key %}{{ cdc_part('e.new', k) }} = x.k{{ loop.index }}{{ ' and ' if not loop.last }}{% endfor %}
  {%- endif %}
),
f{{ i }} as (
  select e.commit_lsn, e.ordinal, e.end_lsn, x.*, e.new, e.old, e.unchanged, e.old_kind
  from (select *, {% if facts.moved %}op = 'U' and old is not null and not ({% for k in key %}{{ cdc_part('old', k) }} <=> {{ cdc_fresh(k, facts) }}{{ ' and ' if not loop.last }}{% endfor %}){% else %}false{% endif %} as is_move from e{{ i }}) e
  lateral view inline(
    {%- if facts.moved %}if(is_move, array(
      named_struct('sub', 0, 'put', false, 'moved', true{% for k in key %}, 'k{{ loop.index }}', {{ cdc_part('old', k) }}{% endfor %}),
      named_struct('sub', 1, 'put', true, 'moved', true{% for k in key %}, 'k{{ loop.index }}', {{ cdc_fresh(k, facts) }}{% endfor %})), {% endif %}array(
      named_struct('sub', 1, 'put', op <> 'D', 'moved', false{% for k in key %}, 'k{{ loop.index }}', if(op = 'D', {{ cdc_part('old', k) }}, {{ cdc_fresh(k, facts) }}){% endfor %})
    ){% if facts.moved %}){% endif %}) x
  {%- if initial %}
  union all
  select cast(-1 as bigint), cast(0 as bigint), end_lsn, 1, true, false{% for k in key %}, {{ cdc_held(k, columns) }}{% endfor %},
    new, cast(null as array<string>), cast(null as array<int>), cast(null as string)
  from {{ initial }}
  {%- endif %}
),
{#- A moved key whose change leaves a value out refers to the effect that removed its old key: (commit_lsn, ordinal). #}
{%- set partition -%}partition by {% for k in key %}k{{ loop.index }}{{ ', ' if not loop.last }}{% endfor %} order by commit_lsn, ordinal, sub{%- endset %}
{{ 'v' if facts.chained else 'w' }}{{ i }} as (
  select *,
    lead(commit_lsn) over ({{ partition }}) as next_commit,
    lead(end_lsn) over ({{ partition }}) as next_end
    {%- for column in toast %},
    last_value(case when not put then null
      {%- if column.attnum in key %} when true then named_struct('v', {{ cdc_fresh(column.attnum, facts) }}, 'rc', cast(null as bigint), 'ro', cast(null as bigint))
      {%- else %} when not coalesce(array_contains(unchanged, {{ column.attnum }}), false)
        then named_struct('v', {{ cdc_cell('new', column) }}, 'rc', cast(null as bigint), 'ro', cast(null as bigint))
      when old_kind = 'O' then named_struct('v', {{ cdc_cell('old', column) }}, 'rc', cast(null as bigint), 'ro', cast(null as bigint))
      when moved then named_struct('v', cast(null as string), 'rc', commit_lsn, 'ro', ordinal)
      {%- endif %} end, true) over ({{ partition }} rows between unbounded preceding and current row) as c{{ column.attnum }}
    {%- endfor %}
  from f{{ i }}
)
{%- endmacro %}
