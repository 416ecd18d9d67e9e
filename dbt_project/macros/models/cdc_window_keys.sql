{% macro cdc_window_keys(plan, window) -%}
select distinct x.* from (select new, old {{ cdc_of_segment(plan, window) }} and {{ cdc_is_change() }}) lateral view inline(array(
  named_struct({% for k in window.key %}'k{{ loop.index }}', new[{{ k - 1 }}]{{ ', ' if not loop.last }}{% endfor %}),
  named_struct({% for k in window.key %}'k{{ loop.index }}', old[{{ k - 1 }}]{{ ', ' if not loop.last }}{% endfor %}))) x
{%- endmacro %}
