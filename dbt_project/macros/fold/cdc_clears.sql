{% macro cdc_clears(plan, segment) -%}
array({% set inside = [] %}
{%- for clear in plan.clears if (clear.commit, clear.ordinal) > (segment.low.commit, segment.low.ordinal)
      and (segment.high is not defined or (clear.commit, clear.ordinal) < (segment.high.commit, segment.high.ordinal)) -%}
{%- do inside.append("named_struct('c', " ~ clear.commit ~ "L, 'o', " ~ clear.ordinal ~ "L, 'e', " ~ clear.end ~ "L)") -%}
{%- endfor -%}{{ inside | join(', ') }})
{%- endmacro %}
