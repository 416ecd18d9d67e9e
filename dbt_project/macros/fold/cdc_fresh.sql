{%- macro cdc_fresh(attnum, facts) -%}
  {%- if attnum in facts.toast -%}
    if(coalesce(array_contains(unchanged, {{ attnum }}), false), {{ cdc_part('old', attnum) }}, {{ cdc_part('new', attnum) }})
  {%- else -%}{{ cdc_part('new', attnum) }}{%- endif -%}
{%- endmacro -%}
