{% macro cdc_keyed_versions(plan, i, segment, columns, facts, whole, split) -%}
r{{ i }} as (
  select * from (
    select {% for column in columns %}{{ cdc_carried(column, facts) }} as s{{ column.attnum }}, {% endfor %}end_lsn as from_lsn,
      {% if whole %}least(next_end, {{ segment.cleared }}){% else %}cast(null as bigint){% endif %} as to_lsn
    from w{{ i }}
    where put and {% if whole %}(next_commit is null or next_commit <> commit_lsn){% else %}next_commit is null{% endif %}
  ) where to_lsn is null or from_lsn < to_lsn
  {%- if split %}
  {{ cdc_copied(plan, i, segment, columns, facts) }}
  {%- endif %}
)
{%- endmacro %}
