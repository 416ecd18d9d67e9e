{% macro cdc_copied(plan, i, segment, columns, facts) -%}
union all
select {% if facts.changed %}/*+ broadcast(x) */ {% endif %}{% for column in columns %}{{ cdc_cell('new', column) }} as s{{ column.attnum }}, {% endfor %}end_lsn as from_lsn, cast(null as bigint) as to_lsn
from (
  select new, end_lsn {{ cdc_of_segment(plan, segment) }} and op = 'R'
) {% if facts.changed %}left anti join x{{ i }} x on {% for k in segment.key %}{{ cdc_part('new', k) }} = x.k{{ loop.index }}{{ ' and ' if not loop.last }}{% endfor %}{% endif %}
{%- endmacro %}
